"""Trains an EAGLE-3 draft head for an open-weights model, measures the speed-up, and serves target and head."""

__version__ = "0.1.0"
