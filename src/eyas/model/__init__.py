"""The target and the draft head. The caller of their forward passes the attention as an argument."""
