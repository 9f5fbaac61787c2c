"""Compares live acceptance with the report of a run and collects prompts for retraining."""
