"""Parses JSON into the types of Python annotations with pydantic, and says in words what is wrong with a value."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

REQUIREMENTS = tomllib.loads(Path(__file__).with_name("json_requirements.toml").read_text(encoding="utf-8"))
T = TypeVar("T")

_adapter = cache(TypeAdapter)


def parse_json(kind: type[T], data: bytes | str) -> T:
    """Parses JSON into a dataclass or another annotated type, without conversions such as "1" to 1.

    A dataclass rejects unknown keys if its `__pydantic_config__` forbids them.

    Raises:
        ValidationError: The JSON or a value is invalid. It is a ValueError; `describe_error` describes it.
    """
    return _adapter(kind).validate_json(data, strict=True)


def describe_error(error: ValidationError) -> str:
    """Describes the first error, such as "turns.0.finish must be one of 'stop' or 'length'". It quotes no value."""
    first: dict[str, Any] = dict(error.errors(include_url=False, include_input=False)[0])
    parts = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        return f"it is not valid JSON: {first['ctx']['error']}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{'.'.join(parts[:-1]) or 'the record'} has no {parts[-1]!r}"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{'.'.join(parts[:-1]) or 'the record'} has the unknown key {parts[-1]!r}"
    return f"{'.'.join(parts) or 'the record'} must be {describe_requirement(first)}"


def describe_requirement(error: Mapping[str, Any]) -> str:
    """Returns what a value must be, as the end of the sentence "x is 3, but must be ...", for example "at most 2".

    Args:
        error: an error of pydantic's `ValidationError.errors()`.
    """
    if error["type"] == "missing":
        return f"an object with the key {error['loc'][-1]}"
    limits = {key: f"{limit:g}" if isinstance(limit, float) else limit for key, limit in error.get("ctx", {}).items()}
    return REQUIREMENTS.get(error["type"], "another value").format(**limits)
