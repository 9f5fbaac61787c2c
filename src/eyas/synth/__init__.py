"""Lawful prompts, and the target's own answers to them: `prompts` and `respond`."""
