"""Training a draft head on stored features, and its acceptance on held-out ones."""
