"""Configuration: frozen dataclasses built strictly from TOML and `stage.key=value` overrides, and written back.

The default of a key stands once, in the dataclass that owns it. Values are checked by the owner's `__post_init__`.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from eyas.base.errors import InputError, UsageError

T = TypeVar("T")
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a TOML key that needs no quotes


def load_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises InputError when it is missing, unreadable or not TOML."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise InputError(f"no file {path}", "a recipe in TOML", "check the path") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable recipe in TOML", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}", "a recipe in TOML", "mend that line") from None


def parse_overrides(items: Sequence[str]) -> dict[str, Any]:
    """`["train.steps=3", "target.model=DIR"]` -> `{"train": {"steps": 3}, "target": {"model": "DIR"}}`.

    A value is read as a TOML value; what is none is taken as a string. The last of two equal keys wins.
    Raises UsageError for an item without a key or "=", and for a key that is both a table and a value.
    """
    result: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            raise UsageError(f"{item!r}", "stage.key=value", "write for example train.steps=7")
        table = result
        for name in names[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise _table_and_value(key)
        if isinstance(table.get(names[-1]), dict):
            raise _table_and_value(key)
        table[names[-1]] = _parse_value(text.strip())
    return result


def merge_tables(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, table by table; where both give a value, that of `above` stands."""
    result = dict(base)
    for key, value in overrides.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge_tables(old, value)
        result[key] = value
    return result


def build(cls: type[T], mapping: Mapping[str, Any], prefix: str = "") -> T:
    """An instance of the frozen dataclass `cls`, nested dataclasses included.

    Fields may be int, float (an int is taken), bool, str, tuple[X, ...], tuple[X, Y], Literal, X | None, NewType,
    dataclasses and Mapping[str, dataclass], tables whose names are free. `where` is the dotted name of the mapping, for
    messages. Raises UsageError for an unknown key (naming near ones), a missing key and a value of another type.
    """
    return _build_dataclass(cls, mapping, prefix, tuple(_leaf_keys(cls, prefix)))


def to_toml(instance: Any) -> str:
    """The instance as TOML, so that `build(type(instance), tomllib.loads(text))` equals it.

    TOML has no null: a field that is None is left out, and must be None by default.
    """
    assert _is_dataclass(type(instance)), f"{instance!r} is not an instance of a dataclass"
    return "\n".join(_table_lines(instance, "")) + "\n"


# --- reading ---------------------------------------------------------------------------------------------------------


def _table_and_value(key: str) -> UsageError:
    return UsageError(f"{key} used both as a table and as a value", "one of them", f"drop one override of {key}")


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A text with a line break may hold further keys, and an unquoted date is a word here: both stay strings.
    if set(parsed) != {"value"} or not isinstance(parsed["value"], str | int | float | bool | list | dict):
        return text
    return parsed["value"]


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _leaf_keys(cls: type, where: str) -> Iterable[str]:
    """Every key of a dataclass and of the dataclasses below it, dotted."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key = _dotted(where, field.name)
        kinds = [kind for kind in (hints[field.name], *typing.get_args(hints[field.name])) if _is_dataclass(kind)]
        if kinds and typing.get_origin(hints[field.name]) not in (tuple, Mapping):
            yield from _leaf_keys(kinds[0], key)
        else:
            yield key


def _nearest_keys(key: str, known: Sequence[str]) -> list[str]:
    """Keys that were probably meant: spelled alike, or the same name in another table."""
    name = key.rpartition(".")[2]
    alike = difflib.get_close_matches(key, sorted(set(known)), n=3, cutoff=0.75)
    names = {candidate.rpartition(".")[2] for candidate in known}
    alike_names = difflib.get_close_matches(name, sorted(names), n=2, cutoff=0.75)
    elsewhere = [candidate for candidate in known if candidate.rpartition(".")[2] in alike_names]
    return list(dict.fromkeys([*alike, *elsewhere]))[:3]


def _build_dataclass(cls: type[T], mapping: Any, where: str, known: tuple[str, ...]) -> T:
    assert _is_dataclass(cls), f"{cls} is not a dataclass"
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    if not isinstance(mapping, Mapping):
        raise UsageError(
            f"{where} = {mapping!r}", f"a table with {', '.join(fields)}", f"write [{where}] and keys below"
        )
    for name in mapping:
        if name not in fields:
            key = _dotted(where, str(name))
            near = _nearest_keys(key, (*known, *(_dotted(where, field) for field in fields)))
            do = f"use {' or '.join(near)}" if near else f"remove {key}"
            raise UsageError(f"unknown key {key}", f"one of {', '.join(_dotted(where, name) for name in fields)}", do)
    values = {}
    for name, field in fields.items():
        key = _dotted(where, name)
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], key, known)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            if not _is_dataclass(hints[name]):
                raise UsageError(f"no {key}", _describe_type(hints[name]), f"add {key} to the recipe or pass {key}=...")
            values[name] = _build_dataclass(
                hints[name], {}, key, known
            )  # a table may be left out when all its keys have defaults
    return cls(**values)


def _convert(kind: Any, value: Any, key: str, known: tuple[str, ...]) -> Any:
    if hasattr(kind, "__supertype__"):  # typing.NewType
        return _convert(kind.__supertype__, value, key, known)
    if _is_dataclass(kind):
        return _build_dataclass(kind, value, key, known)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in args):
            return value
        raise _wrong_value(kind, value, key, [str(choice) for choice in args])
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        assert len(inner) == 1, f"{key}: only X | None is supported, not {kind}"
        return None if value is None and len(args) == 2 else _convert(inner[0], value, key, known)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong_value(kind, value, key)
        return {name: _convert(args[1], item, _dotted(key, name), known) for name, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong_value(kind, value, key)
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(value):
            raise _wrong_value(kind, value, key)
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_convert(inner, item, f"{key}[{index}]", known) for index, (inner, item) in pairs)
    assert kind in (int, float, bool, str), f"{key}: type {kind} has no spelling in a recipe"
    # bool is an int to Python, and 7 is a fine float; nothing else is converted, or a wrong recipe would run.
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong_value(kind, value, key)
    return value


def _wrong_value(kind: Any, value: Any, key: str, choices: Sequence[str] = ()) -> UsageError:
    near = difflib.get_close_matches(str(value), choices, n=1)
    do = f"write {key}={near[0]}" if near else f"change {key}"
    if kind is str and not isinstance(value, Mapping | list | tuple):
        do = f'put it in quotes: {key}=\'"{value}"\' on the command line, "{value}" in the recipe'
    return UsageError(f"{key} = {value!r}", _describe_type(kind), do)


def _describe_type(kind: Any) -> str:
    """A type in the words of a recipe."""
    if hasattr(kind, "__supertype__"):
        return _describe_type(kind.__supertype__)
    if _is_dataclass(kind):
        return f"a table with {', '.join(field.name for field in dataclasses.fields(kind))}"
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(repr(choice) for choice in args)}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nothing" if arg is type(None) else _describe_type(arg) for arg in args)
    if origin is Mapping:
        return f"tables by name, each {_describe_type(args[1])}"
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"a list, each item {_describe_type(args[0])}"
        return f"a list of {len(args)}: {', '.join(_describe_type(arg) for arg in args)}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[kind]


# --- writing ---------------------------------------------------------------------------------------------------------


def _table_lines(instance: Any, where: str) -> list[str]:
    lines, tables = [], []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        key = _dotted(where, field.name)
        if value is None:
            assert field.default is None, f"{key} is None, which is not its default: TOML cannot say so"
        elif _is_dataclass(type(value)):
            inner = _table_lines(value, key)
            tables += ["", f"[{key}]", *inner] if inner else []
        elif isinstance(value, Mapping):
            for name, item in value.items():
                inner_key = f"{key}.{name if _BARE.fullmatch(name) else _value_text(name)}"
                tables += ["", f"[{inner_key}]", *_table_lines(item, inner_key)]
        else:
            lines.append(f"{field.name} = {_value_text(value)}")
    return lines + tables


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf", "nan": "nan"}[str(value)]
    if isinstance(value, tuple):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    assert _is_dataclass(type(value)), f"{value!r} has no spelling in TOML"
    pairs = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return "{" + ", ".join(f"{name} = {_value_text(item)}" for name, item in pairs if item is not None) + "}"
