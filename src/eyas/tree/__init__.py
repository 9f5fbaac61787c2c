"""The draft tree: its shape, its growth, its verification and what its acceptance is called.

Import the modules; this file imports nothing, so that reading a shape from a recipe costs no torch.
"""
