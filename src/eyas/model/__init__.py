"""The target and the draft head; both get their attention as an argument."""
