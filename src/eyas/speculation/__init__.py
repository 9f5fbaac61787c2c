"""Decides how many tokens each round drafts, from measured costs and learned acceptance."""
