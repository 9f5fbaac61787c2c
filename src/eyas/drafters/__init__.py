"""Proposes draft tokens: one file for each kind of drafter."""
