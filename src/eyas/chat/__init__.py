"""Reads and writes conversations, and renders them to token ids and loss masks."""
