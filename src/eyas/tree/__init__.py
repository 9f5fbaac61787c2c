"""The draft tree: its shape, growth, verification, sampling, and acceptance statistics.

This file imports nothing, so that reading a shape from a recipe does not import torch.
"""
