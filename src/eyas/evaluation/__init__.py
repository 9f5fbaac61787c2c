"""Measures the acceptance length of a head on held-out answers."""
