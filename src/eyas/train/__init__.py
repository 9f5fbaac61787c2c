"""Trains a draft head on stored features and evaluates it on held-out answers."""
