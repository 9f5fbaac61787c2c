"""Reads public prompt sets and texts with marked names from the directory that `--data` names, split into halves."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from data_split import Half, half

SCHOOL_LANGUAGES = ("en", "de", "es", "fr", "ru", "zh", "ja")  # of MGSM; the filter has no Bengali, Swahili, ...
Record = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """The user's texts of one record of a prompt set. `set_name` is the set, `id` the record's place in it."""

    set_name: str
    id: str
    language: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class PromptSet:
    """A file of prompts: its language, how a record's group is named, and where its texts are."""

    file: str
    language: str
    group: Callable[[Record], str]
    texts: Callable[[Record], tuple[str, ...]]


def _with_input(record: Record) -> tuple[str, ...]:
    given = record["instances"][0]["input"]
    return (record["instruction"] + (f"\n{given}" if given else ""),)


def _prompt(record: Record) -> tuple[str, ...]:
    return (record["prompt"],)


PROMPT_SETS = (
    PromptSet("ifeval", "en", lambda record: f"ifeval {record['key']}", _prompt),
    PromptSet("m-ifeval-es", "es", lambda record: f"m-ifeval-es {record['key']}", _prompt),
    PromptSet("m-ifeval-fr", "fr", lambda record: f"m-ifeval-fr {record['key']}", _prompt),
    PromptSet("m-ifeval-ja", "ja", lambda record: f"m-ifeval-ja {record['key']}", _prompt),
    PromptSet("self-instruct-seed", "en", lambda record: record["id"], _with_input),
    PromptSet("self-instruct-user", "en", lambda record: record["id"], _with_input),
    PromptSet("mt-bench", "en", lambda record: f"mt {record['question_id']}", lambda record: tuple(record["turns"])),
    PromptSet(
        "mt-bench-101",
        "en",
        lambda record: f"mt101 {record['id']}",
        lambda record: tuple(turn["user"] for turn in record["history"]),
    ),
    PromptSet("humaneval", "en", lambda record: record["task_id"], _prompt),
)


def read_records(data: Path, name: str) -> list[Record]:
    """Reads a file of JSON lines. Returns an empty list if it is not there."""
    path = data / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def ordinary_prompts(data: Path, part: Half, languages: tuple[str, ...]) -> Iterator[Prompt]:
    """Yields the prompts of the sets without school problems."""
    for chosen in PROMPT_SETS:
        if chosen.language in languages:
            for record in read_records(data, chosen.file):
                group = chosen.group(record)
                if half(group) == part:
                    yield Prompt(chosen.file, group, chosen.language, chosen.texts(record))


def school_problems(data: Path, part: Half, languages: tuple[str, ...]) -> Iterator[Prompt]:
    """Yields the school problems: GSM8K and MGSM.

    The training problems of GSM8K are for developing, its test problems for reporting. MGSM translates 250 of the
    test problems; those in its half for developing are left out of GSM8K's test problems.
    """
    if "en" in languages:
        file = "gsm8k-train" if part == "develop" else "gsm8k-test"
        seen = _developed_problems(data) if part == "report" else frozenset[str]()
        for number, record in enumerate(read_records(data, file)):
            if _letters(record["question"]) not in seen:
                yield Prompt("gsm8k", f"{file} {number}", "en", (record["question"],))
    for language in languages:
        for record in read_records(data, f"mgsm-{language}") if language in SCHOOL_LANGUAGES else []:
            if half(f"mgsm {record['id']}") == part:
                yield Prompt("mgsm", f"mgsm {record['id']}", language, (record["question"],))


@cache
def _developed_problems(data: Path) -> frozenset[str]:
    """Returns the English problems of MGSM's half for developing, without anything but letters and digits."""
    records = read_records(data, "mgsm-en")
    return frozenset(_letters(record["question"]) for record in records if half(f"mgsm {record['id']}") == "develop")


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()
