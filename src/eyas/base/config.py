"""Builds configuration dataclasses from TOML files and `stage.key=value` overrides, and writes them as TOML.

Unknown keys and wrong types are errors. Each dataclass defines the defaults of its keys and checks their values in
`__post_init__`.
"""

import dataclasses
import difflib
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from eyas.base.errors import InputError, UsageError

T = TypeVar("T")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # a TOML key that needs no quotes
_TOML_POSITION = re.compile(r"line \d+, column \d+|end of document")
_SCALARS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


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

    The supported types of fields are int, float (which also accepts an int), bool, str, tuple[X, ...], tuple[X, Y],
    Literal, X | None, NewType, dataclasses, and a Mapping for a table whose keys the user chooses: Mapping[str,
    dataclass], or Mapping[str, Any] for numbers, strings, true and false.

    Args:
        cls: The dataclass.
        mapping: The values of the fields by name, as read from TOML.
        prefix: The dotted name of the mapping in the recipe, such as "train.head"; used in error messages.

    Raises:
        UsageError: An unknown key (the error names the nearest known one), a missing key, or a value of a wrong type.
    """
    return _Builder(tuple(_leaf_keys(cls, prefix))).build(cls, mapping, prefix)


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


class Range(NamedTuple):
    """The annotation of a field that holds a number, such as Annotated[int, Range(3)]. `check_ranges` checks it."""

    low: float
    high: float = sys.float_info.max
    exclude_low: bool = False


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0, exclude_low=True)]
NonNegativeFloat = Annotated[float, Range(0)]


def check_ranges(table: str, config: Any) -> None:
    """Raises UsageError if a number in a field is out of the range of the field's annotation.

    Args:
        table: The dotted recipe table of the configuration, for the error message.
        config: An instance of a dataclass.
    """
    for name, kind in typing.get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        for item in value if isinstance(value, tuple) else (value,):
            for limits in _ranges(kind):
                require_range(f"{table}.{name}", item, limits.low, limits.high, exclude_low=limits.exclude_low)


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


def _ranges(kind: Any) -> list[Range]:
    """Returns the ranges in an annotation, such as that of X in tuple[X, ...] | None."""
    if typing.get_origin(kind) is Annotated:
        return [limits for limits in kind.__metadata__ if isinstance(limits, Range)]
    return [limits for inner in typing.get_args(kind) for limits in _ranges(inner)]


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _leaf_keys(cls: type, prefix: str) -> Iterable[str]:
    """Yields the dotted keys of a dataclass and of the dataclasses below it."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key = _dotted(prefix, field.name)
        kinds = [kind for kind in (hints[field.name], *typing.get_args(hints[field.name])) if _is_dataclass(kind)]
        if kinds and typing.get_origin(hints[field.name]) not in (tuple, Mapping):
            yield from _leaf_keys(kinds[0], key)
        else:
            yield key


def _nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Returns the known key that is spelled most alike, or has nearly the same name in another table; else None."""
    if alike := difflib.get_close_matches(key, sorted(set(known)), n=1, cutoff=0.75):
        return alike[0]
    names = {candidate.rpartition(".")[2]: candidate for candidate in reversed(known)}
    alike = difflib.get_close_matches(key.rpartition(".")[2], sorted(names), n=1, cutoff=0.75)
    return names[alike[0]] if alike else None


@dataclasses.dataclass(frozen=True)
class _Builder:
    """A builder of dataclasses from mappings.

    Attributes:
        known: All dotted keys of the configuration, from which error messages suggest the nearest one.
    """

    known: tuple[str, ...]

    def build(self, cls: type[T], mapping: Any, prefix: str) -> T:
        assert _is_dataclass(cls), f"{cls} is not a dataclass"
        hints = typing.get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
        if not isinstance(mapping, Mapping):
            raise UsageError(f"{prefix} = {mapping!r} is not a table", f"Write [{prefix}] and its keys below it")
        for name in mapping:
            if name not in fields:
                key = _dotted(prefix, str(name))
                near = _nearest_key(key, (*self.known, *(_dotted(prefix, field) for field in fields)))
                raise UsageError(f"Unknown key {key}", f"Use {near}, the nearest known key" if near else "Remove it")
        values = {}
        for name, field in fields.items():
            key = _dotted(prefix, name)
            if name in mapping:
                values[name] = self._convert(hints[name], mapping[name], key)
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                if not _is_dataclass(hints[name]):
                    fix = f"Add it to the recipe, or pass {key}=... ({_describe_type(hints[name])})"
                    raise UsageError(f"{key} is required and has no default", fix)
                values[name] = self.build(hints[name], {}, key)  # a table whose keys all have defaults may be left out
        return cls(**values)

    def _convert(self, kind: Any, value: Any, key: str) -> Any:
        if value is None and type(None) in typing.get_args(kind):
            return None
        kind = _unwrap(kind)
        if _is_dataclass(kind):
            return self.build(kind, value, key)
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is Mapping and isinstance(value, Mapping):
            return {name: self._convert(args[1], item, _dotted(key, name)) for name, item in value.items()}
        if origin is tuple and isinstance(value, list | tuple):
            kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
            if len(kinds) == len(value):
                pairs = enumerate(zip(kinds, value, strict=True))
                return tuple(self._convert(inner, item, f"{key}[{index}]") for index, (inner, item) in pairs)
        if origin is Literal and any(value == choice and type(value) is type(choice) for choice in args):
            return value
        if kind is Any and type(value) in _SCALARS:
            return value
        assert origin is not None or kind is Any or kind in _SCALARS, f"{key}: type {kind} has no spelling in a recipe"
        # bool is an int to Python, and 7 is a valid float; nothing else is converted, or a wrong recipe would run.
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        choices = [str(choice) for choice in args] if origin is Literal else []
        near = difflib.get_close_matches(str(value), choices, n=1)
        fix = f"Use {near[0]}, the nearest choice" if near else ""
        if kind is str and not isinstance(value, Mapping | list | tuple):
            fix = f'Put it in quotes: {key}=\'"{value}"\' on the command line, "{value}" in the recipe'
        raise UsageError(f"{key} = {value!r} is not {_describe_type(kind)}", fix)


def _unwrap(kind: Any) -> Any:
    """Returns X for a NewType of X and for X | None; returns any other type unchanged."""
    if hasattr(kind, "__supertype__"):  # typing.NewType
        return _unwrap(kind.__supertype__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        assert len(inner) == 1, f"only X | None is supported, not {kind}"
        return _unwrap(inner[0])
    return kind


def _describe_type(kind: Any) -> str:
    """Returns the description of a type for error messages, for example "a whole number"."""
    kind = _unwrap(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(repr(choice) for choice in args)}"
    if origin is Mapping:
        return "a table" if args[1] is Any else "a table of tables"
    if kind is Any:
        return "a number, a string, true or false"
    if origin is tuple and args[-1] is Ellipsis:
        return f"a list, each item {_describe_type(args[0])}"
    if origin is tuple:
        return f"a list of {len(args)}: {', '.join(_describe_type(arg) for arg in args)}"
    return _SCALARS.get(kind, "a table")


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
