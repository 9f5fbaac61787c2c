"""Manages KV cache memory: pages, prefix cache and the state that rounds pass on."""
