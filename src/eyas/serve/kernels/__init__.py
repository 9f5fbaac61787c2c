"""Attention operators built for the machine that they run on."""
