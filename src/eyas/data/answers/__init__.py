"""Generates the target's answers to the prompts, in process or through an OpenAI-compatible server."""
