"""Captured features of the target: layout, capture, storage and reading of training examples."""
