"""Decides from licenses and terms of use if prompts and answers may train a head."""
