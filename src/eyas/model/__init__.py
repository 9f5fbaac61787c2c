"""The target and the draft head, and the attention that both receive as an argument."""
