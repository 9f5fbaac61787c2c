"""Finds personal data and secrets in prompts. The filter drops the record, or replaces the values by surrogates."""
