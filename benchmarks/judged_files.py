"""Writes tables for a human judge, and reads the filled-in tables back. They hold texts of others."""

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar

Line = TypeVar("Line")
ANSWERS = ("yes", "no")


def write_table(path: Path, lines: Sequence[Any]) -> None:
    """Writes a tab-separated table, one line for each instance of a dataclass."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, dialect="excel-tab")
        writer.writerow(field.name for field in fields(lines[0]))
        writer.writerows(astuple(line) for line in lines)


def read_table(path: Path, line_type: type[Line], columns: Sequence[str]) -> list[Line]:
    """Reads a table. Raises SystemExit if an answer in one of these columns is neither yes nor no."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, dialect="excel-tab"))
    for number, line in enumerate(lines, start=1):
        for column in columns:
            if line[column] not in ANSWERS:
                raise SystemExit(f"{path}: line {number} has {line[column]!r} in the column {column}; write yes or no")
    return [line_type(**line) for line in lines]
