"""Builds training conversations: reads prompts, filters them, and collects the target's answers."""
