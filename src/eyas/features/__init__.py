"""Captures the hidden states of the target (the features), stores them, and reads them as training examples."""
