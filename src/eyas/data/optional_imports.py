"""Packages of the extra `data`, imported where they are used."""

import importlib
from typing import Any

from eyas.base.errors import InputError


def import_extra(module: str) -> Any:
    """The module; InputError that names the extra where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"no package {module.partition('.')[0]}",
            "what reading and screening of your own prompts needs",
            "pip install 'eyas[data]'",
        ) from None
