"""Runs Presidio's recognizers, in their environment below PEERS, on the texts that the filter is measured on."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from data_options import Options
from marked_texts import Mark

DRIVER = Path(__file__).parent / "peer_drivers" / "run_presidio.py"
NAME_SLOTS = frozenset({"person", "first", "last", "city"})  # Presidio finds them with a model only
BLANK = "\N{WHITE SQUARE}"


def run_presidio(texts: Sequence[tuple[str, str]], options: Options) -> list[list[Mark]] | None:
    """Returns what Presidio finds in each text. Returns None if it is not installed, or fails.

    Args:
        texts: The texts and their languages.
        options: The options; `env_dir` is the directory of the environments of peers, `model` that of a model.
    """
    python = options.env_dir / "presidio" / "bin" / "python"
    if not python.exists():
        _warn("`make peers-privacy` installs it")
        return None
    command = [str(python), str(DRIVER), *(["--model", str(options.model)] if options.model else [])]
    lines = [
        json.dumps({"id": number, "text": text, "language": language}) for number, (text, language) in enumerate(texts)
    ]
    done = subprocess.run(command, input="\n".join([*lines, ""]), capture_output=True, text=True, check=False)
    if done.returncode:
        _warn(f"its driver failed:\n{done.stderr[-2000:]}")
        return None
    answers = {answer["id"]: answer["spans"] for answer in map(json.loads, done.stdout.splitlines())}
    return [[Mark(*span) for span in answers[number]] for number in range(len(texts))]


def blank(text: str, found: Sequence[Mark]) -> str:
    """Replaces each span that was found by a square."""
    places = {place for span in found for place in range(span.start, span.end)}
    squares = (BLANK if place in places else char for place, char in enumerate(text))
    return "".join(char for place, char in enumerate(squares) if not (char == BLANK and place - 1 in places))


@cache
def _warn(why: str) -> None:
    print(f"Presidio is not measured: {why}", file=sys.stderr, flush=True)
