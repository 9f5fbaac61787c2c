"""Lets pyright skip the model, which imports all of transformers."""

from typing import Any

def __getattr__(name: str) -> Any: ...
