"""Builds configuration dataclasses from TOML files and `stage.key=value` overrides, and writes them as TOML.

Unknown keys, wrong types and numbers out of range are errors, which pydantic finds. Each dataclass defines the defaults
of its keys and checks in `__post_init__` what annotations cannot say.
"""

import dataclasses
import difflib
import json
import re
import sys
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from eyas.base.errors import InputError, UsageError
from eyas.base.json_parser import describe_requirement

T = TypeVar("T")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # a TOML key that needs no quotes
_TOML_POSITION = re.compile(r"line \d+, column \d+|end of document")
_RANGE_ERRORS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")  # types of pydantic's errors


def load_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file. Raises InputError if the file is missing, unreadable or not TOML."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Check the path and its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        position = _TOML_POSITION.search(str(error))
        problem = f"{path} is not valid TOML" + (f" ({position.group()})" if position else "")
        raise InputError(problem, 'Correct the file: write KEY = VALUE on each line, and text in "quotes"') from None


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """Parses `["train.steps=3", "target.model=DIR"]` to `{"train": {"steps": 3}, "target": {"model": "DIR"}}`.

    A value that is not valid TOML is read as a string. If a key occurs twice, the last value is used.

    Raises:
        UsageError: An item has no key or no "=", or a key is used both as a table and as a value.
    """
    result: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            raise UsageError(f"{item!r} is not of the form stage.key=value", "Write for example train.steps=7")
        table: Any = result
        for name in names[:-1]:
            table = table.setdefault(name, {}) if isinstance(table, dict) else table
        if not isinstance(table, dict) or isinstance(table.get(names[-1]), dict):
            raise UsageError(f"{key} is used both as a table and as a value", f"Remove one of the overrides of {key}")
        table[names[-1]] = _parse_value(text.strip())
    return result


def merge_tables(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two mappings, nested tables included. If both have a key, the value of `overrides` is used."""
    result = dict(base)
    for key, value in overrides.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge_tables(old, value)
        result[key] = value
    return result


def flatten_table(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested mappings by dotted key: {"slo": {"ttft_ms": 3}} -> {"slo.ttft_ms": 3}."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = _dotted(prefix, name)
        flat |= flatten_table(value, key) if isinstance(value, Mapping) else {key: value}
    return flat


def build(cls: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """Builds an instance of the frozen dataclass `cls`, nested dataclasses included.

    pydantic validates the values without conversions, except from a whole number to a float. The annotation of a field
    may give the limits of a number, such as Annotated[int, Field(ge=3)]. The fields must have types that TOML can
    spell: int, float, bool, str, tuple[X, ...], tuple[X, Y], Literal, X | None, NewType, dataclasses, and a Mapping for
    a table whose keys the user chooses: Mapping[str, dataclass] or Mapping[str, Scalar].

    Args:
        cls: The dataclass.
        mapping: The values of the fields by name, as read from TOML.
        prefix: The dotted name of the mapping in the recipe, such as "train.head"; used in error messages.

    Raises:
        UsageError: An unknown key (the error names the nearest known one), a missing key, or a value of a wrong type or
            out of range.
    """
    try:
        (built,) = _adapter(cls).validate_json(json.dumps([mapping], default=str))  # str: of a date
    except ValidationError as error:
        raise _to_usage_error(cls, prefix, error.errors(include_url=False)[0]) from None
    return built


def require_range(
    key: str, value: float | None, low: float, high: float = sys.float_info.max, *, exclude_low: bool = False
) -> None:
    """Raises UsageError if the value of a recipe key is out of range. None is always accepted.

    Args:
        key: The dotted recipe key, for the error message.
        value: The value.
        low: The smallest value that is accepted.
        high: The largest value that is accepted.
        exclude_low: Rejects `low` itself, too.
    """
    if value is None or (low <= value <= high and not (exclude_low and value == low)):
        return
    limits = f"{'above' if exclude_low else 'at least'} {low:g}"
    limits += f" and at most {high:g}" if high < sys.float_info.max else ""
    raise UsageError(f"{key} = {value} is out of range", f"Set {key} to a number {limits}")


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, int | float | str):  # bool is an int
        raise PydanticCustomError("scalar_type", "a number, a string, true or false")
    return value


PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Scalar = Annotated[Any, AfterValidator(_check_scalar)]


def to_toml(instance: Any) -> str:
    """Returns the instance as TOML text. `build(type(instance), tomllib.loads(text))` gives an equal instance.

    TOML has no null, so fields with the value None are left out. Requirement: None is the default of these fields.
    """
    assert _is_dataclass(type(instance)), f"{instance!r} is not an instance of a dataclass"
    return "\n".join(_table_lines(instance, "")) + "\n"


# --- reading ---------------------------------------------------------------------------------------------------------


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A text with a line break may hold further keys, and an unquoted date is a word here: both stay strings.
    if set(parsed) != {"value"} or not isinstance(parsed["value"], str | int | float | bool | list | dict):
        return text
    return parsed["value"]


@cache
def _adapter(cls: type) -> TypeAdapter[tuple[Any]]:
    # pydantic takes a configuration for a tuple, and applies it to the dataclasses inside, but not for a dataclass.
    return TypeAdapter(tuple[cls], config=ConfigDict(extra="forbid", strict=True))  # type: ignore[valid-type]


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _find_dataclass(kind: Any) -> type | None:
    """Returns the dataclass in a type such as X | None or Mapping[str, X]; None if there is none."""
    if _is_dataclass(kind):
        return kind
    return next(filter(None, map(_find_dataclass, typing.get_args(kind))), None)


def _leaf_keys(cls: type, prefix: str) -> Iterable[str]:
    """Yields the dotted keys of a dataclass and of the dataclasses below it."""
    for name, kind in typing.get_type_hints(cls).items():
        key, table = _dotted(prefix, name), _find_dataclass(kind)
        if table is None or typing.get_origin(kind) in (tuple, Mapping):
            yield key
        else:
            yield from _leaf_keys(table, key)


def _nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Returns the known key that is spelled most alike, or has nearly the same name in another table; else None."""
    if alike := difflib.get_close_matches(key, sorted(set(known)), n=1, cutoff=0.75):
        return alike[0]
    names = {candidate.rpartition(".")[2]: candidate for candidate in reversed(known)}
    alike = difflib.get_close_matches(key.rpartition(".")[2], sorted(names), n=1, cutoff=0.75)
    return names[alike[0]] if alike else None


def _to_usage_error(cls: type, prefix: str, error: Mapping[str, Any]) -> UsageError:
    """Converts one error of pydantic. cls: the dataclass that was built."""
    kind, value, key, table = error["type"], error["input"], prefix, cls
    part, siblings = "", list[str]()
    for part in error["loc"][1:]:
        hints = typing.get_type_hints(table)
        siblings = [_dotted(key, name) for name in hints]
        key = f"{key}[{part}]" if isinstance(part, int) else _dotted(key, part)
        table = _find_dataclass(hints.get(str(part))) or table
    if kind == "unexpected_keyword_argument":
        near = _nearest_key(key, (*_leaf_keys(cls, prefix), *siblings))
        return UsageError(f"Unknown key {key}", f"Use {near}, the nearest known key" if near else "Remove it")
    if kind == "missing":
        fix = f"Add it to the recipe, or pass {key}=VALUE" if isinstance(part, str) else "Add it to the list"
        return UsageError(f"{key} is required and has no default", fix)
    requirement = describe_requirement(error).replace("JSON object", "table")
    if kind in _RANGE_ERRORS:
        return UsageError(f"{key} = {value} is out of range", f"Set {key} to a number {requirement}")
    fix = ""
    if kind == "literal_error":
        near = difflib.get_close_matches(str(value), re.findall("'(.*?)'", error["ctx"]["expected"]), n=1)
        fix = f"Use {near[0]}, the nearest choice" if near else ""
    elif kind == "dataclass_type":
        fix = f"Write [{key}] and its keys below it"
    elif kind == "string_type" and not isinstance(value, dict | list):
        fix = f'Put it in quotes: {key}=\'"{value}"\' on the command line, "{value}" in the recipe'
    return UsageError(f"{key} = {value!r} is not {requirement}", fix)


# --- writing ---------------------------------------------------------------------------------------------------------


def _table_lines(instance: Any, prefix: str) -> list[str]:
    lines, tables = [], []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        key = _dotted(prefix, field.name)
        if value is None:
            assert field.default is None, f"{key} is None, which is not its default: TOML cannot say so"
        elif _is_dataclass(type(value)):
            inner = _table_lines(value, key)
            tables += ["", f"[{key}]", *inner] if inner else []
        elif isinstance(value, Mapping) and any(_is_dataclass(type(item)) for item in value.values()):
            for name, item in value.items():
                inner_key = f"{key}.{_format_key(name)}"
                tables += ["", f"[{inner_key}]", *_table_lines(item, inner_key)]
        else:
            lines += [] if value == {} else [f"{field.name} = {_format_value(value)}"]
    return lines + tables


def _format_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _format_value(name)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)  # TOML spells inf, -inf and nan as Python does
    if isinstance(value, tuple):
        return f"[{', '.join(_format_value(item) for item in value)}]"
    if not isinstance(value, Mapping):
        assert _is_dataclass(type(value)), f"{value!r} has no spelling in TOML"
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    pairs = [(name, item) for name, item in value.items() if item is not None]
    return "{" + ", ".join(f"{_format_key(name)} = {_format_value(item)}" for name, item in pairs) + "}"
