"""Parses the command line and runs the verb. It imports a verb's code when the verb runs, so --help needs no torch."""

import argparse
import contextlib
import difflib
import functools
import importlib
import os
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NoReturn

from eyas import __version__
from eyas.base.errors import EyasError, UsageError
from eyas.base.google_auth import SECRETS_VARIABLE, load_secrets

INTERRUPTED = "eyas: stopped. Run the same command again: a run directory continues where it stopped."
TYPES = {"int": int, "float": float}
OPTIONAL = dict.fromkeys(("device", "acknowledge"), None) | {"json": False}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Returns:
        The exit code: 0 for success, 1 for a failure, 2 for wrong usage or input, 3 if `eyas drift` advises training.
    """
    try:
        with _redeliver_interrupts():
            parsed = _parse(arguments)
            load_secrets(os.environ.pop(SECRETS_VARIABLE, ""))
            return _load_function(parsed.function)(parsed)
    except EyasError as error:
        print(f"eyas: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 1
    except BrokenPipeError:  # `eyas ... | head`
        sys.stderr.close()
        return 1


def _load_function(name: str) -> Callable[[argparse.Namespace], int]:
    """Imports and returns "module:function" of this package. It also disables the log output of transformers."""
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return found


@contextlib.contextmanager
def _redeliver_interrupts() -> Iterator[None]:
    """Makes Ctrl-C work while a finalizer runs. Python discards a KeyboardInterrupt there, so SIGINT is sent again."""
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # From a timer: an exception raised here would be swallowed again.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@functools.cache
def _load_table() -> dict[str, Any]:
    return tomllib.loads(files(__name__).joinpath("arguments.toml").read_text(encoding="utf-8"))


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError for an invalid command line."""

    def error(self, message: str) -> NoReturn:
        for pattern, text in _load_table()["usage_errors"].items():
            if (found := re.fullmatch(pattern, message)) is not None:
                message = text.format(*found.groups())
        raise UsageError(message, f"Read `{self.prog} --help`")

    def require_known(self, kind: str, word: str, known: Sequence[str]) -> None:
        """Raises UsageError if `word` is not in `known`. The error suggests the nearest known word.

        Args:
            kind: The kind of the word for the message: "verb" or "argument".
            word: The word.
            known: The known words.
        """
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"Unknown {kind} {word!r}", f"{hint}Read `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(action.choices or [value])
        if action.dest == "verb":
            self.require_known("verb", value, choices)
        elif value not in choices:
            self.error(f"{action.metavar or action.option_strings[0]} is {value!r}, but must be {' or '.join(choices)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses a command line. It also accepts key=value after an option, which argparse alone would reject."""
    parser, verbs = _build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    verb = verbs[parsed.verb]
    for word in rest:
        if word.startswith("-") or "overrides" not in parsed:
            verb.require_known("argument", word.partition("=")[0], list(verb._option_string_actions))
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _build_parser() -> tuple[_Parser, Mapping[str, _Parser]]:
    """Builds the parser from arguments.toml. Returns it and the parser of each verb by name."""
    table = _load_table()
    parser = _Parser(prog="eyas", description=table["description"], epilog=table["epilog"], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"eyas {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, spec in table["verbs"].items():
        summary, example = spec["summary"], spec.get("example")
        epilog = f"Example: {example}" if example else None
        verb = verbs.add_parser(name, help=summary, description=summary, epilog=epilog, allow_abbrev=False)
        verb.set_defaults(function=spec["function"], **OPTIONAL, **spec.get("defaults", {}))
        groups = [*(table["shared"][group] for group in spec.get("uses", ())), spec.get("arguments", {})]
        _add_arguments(verb, {argument: options for group in groups for argument, options in group.items()})
    return parser, verbs.choices


def _add_arguments(parser: _Parser, arguments: Mapping[str, dict[str, Any]]) -> None:
    exclusive = None
    for name, spec in arguments.items():
        options, owner = dict(spec), parser
        if options.pop("exclusive", False):
            owner = exclusive = exclusive or parser.add_mutually_exclusive_group()
        if "type" in options:
            options["type"] = TYPES[options["type"]]
        if options.get("default", []) != []:
            options["help"] += " (default: %(default)s)"
        owner.add_argument(name, **options)
