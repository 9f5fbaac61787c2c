"""Holds the options that prove_data.py passes to its parts."""

from dataclasses import dataclass
from pathlib import Path

from data_split import Half
from text_sets import LANGUAGES


@dataclass(frozen=True)
class Options:
    """The command-line options of benchmarks/prove_data.py."""

    seed: int = 0
    data: Path | None = None  # gsm8k-train.jsonl, mt-bench.jsonl, humaneval.jsonl
    tables: Path | None = None
    show_number: int = 0
    show_file: Path | None = None
    pairs: int = 7
    half: Half = "report"
    languages: tuple[str, ...] = LANGUAGES
    env_dir: Path = Path.home() / ".cache" / "eyas" / "peers"  # environments of other tools
    judge_file: Path | None = None
    read_file: Path | None = None
    model: Path | None = None  # a model with which Presidio finds names
