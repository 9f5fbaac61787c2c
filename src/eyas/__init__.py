"""eyas: train an EAGLE-3 draft head for an open-weights model, prove the speed-up, serve the same words faster."""

__version__ = "0.1.0"
