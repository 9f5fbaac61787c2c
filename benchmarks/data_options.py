"""Holds the options that prove_data.py passes to its parts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The command-line options of benchmarks/prove_data.py."""

    seed: int = 0
    data: Path | None = None  # gsm8k-train.jsonl, mt-bench.jsonl, humaneval.jsonl
    tables: Path | None = None
    show_number: int = 0
    show_file: Path | None = None
    pairs: int = 7
