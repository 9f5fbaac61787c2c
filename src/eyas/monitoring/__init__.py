"""Compares live acceptance with the report of a run, and samples prompts of live traffic for retraining."""
