"""Decides from licenses and terms of use whether prompts and answers may be used to train a head."""
