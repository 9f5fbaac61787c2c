"""Imports packages of the extra `data`, where they are used."""

import importlib
from typing import Any

from eyas.base.errors import InputError


def import_extra(module: str) -> Any:
    """Returns the module. Raises InputError that names the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(
            f"Reading and screening prompts needs the package {package}, which is not installed",
            "Run: pip install 'eyas[data]'",
        ) from None
