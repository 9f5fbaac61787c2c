"""Measures any OpenAI-compatible server over HTTP."""
