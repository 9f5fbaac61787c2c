"""Decides from licenses and terms of use whether prompts and answers may train a head."""
