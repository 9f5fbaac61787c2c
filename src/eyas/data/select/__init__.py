"""Screens prompts for quality, language and duplicates, and selects those that match production traffic."""
