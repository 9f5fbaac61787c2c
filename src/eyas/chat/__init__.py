"""Conversations, and their rendering to ids and loss masks."""
