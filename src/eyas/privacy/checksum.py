"""Check digits of identifiers, by python-stdnum."""

import importlib
from collections.abc import Callable


def stdnum_check(module: str) -> Callable[[str], bool]:
    """Return the validity check of one of python-stdnum's modules, for example "us.ssn"."""
    return importlib.import_module(f"stdnum.{module}").is_valid
