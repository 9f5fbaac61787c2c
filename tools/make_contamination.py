"""Writes the hashes of evaluation prompts that ship with eyas: src/eyas/evalsets/hashes/*.bin.

    python tools/make_contamination.py DATA --date YYYY-MM-DD [--out DIRECTORY]

DATA is a directory with mt-bench.jsonl (lm-sys/FastChat, Apache-2.0), humaneval.jsonl (openai/human-eval, MIT) and
gsm8k-test.jsonl (openai/grade-school-math, MIT), as their projects publish them. The date says when they were
downloaded. Only hashes of the prompts are stored. Spec-Bench has no separate file: see EVALSET_FILES in
eyas.data.select.contamination.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from eyas.base.provenance import digest_file
from eyas.base.storage import write_atomic
from eyas.evalsets import FAMILIES, example
from eyas.evalsets.ngram_hashes import (
    FORMAT_VERSION,
    HASHES,
    NgramHashes,
    Unit,
    hash_ngrams,
    hash_record,
    hash_words,
)

# name -> source, license, the key of the user's text
PUBLIC = {
    "mt-bench": ("lm-sys/FastChat", "Apache-2.0", "turns"),
    "humaneval": ("openai/human-eval", "MIT", "prompt"),
    "gsm8k-test": ("openai/grade-school-math", "MIT", "question"),
}
NGRAM_SIZES = (8, 13)  # the n that files hold
PER_FAMILY = 250  # prompts of eyas.evalsets, which generates any number; `eyas bench` uses the first of each family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--date", required=True, help="when DATA was downloaded")
    parser.add_argument("--out", type=Path, default=HASHES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (source, license_name, key) in PUBLIC.items():
        path = arguments.data / f"{name}.jsonl"
        origin = {"source": source, "license": license_name, "file": digest_file(path), "fetched": arguments.date}
        _write(arguments.out, hash_records(name, _texts(path, key)), origin)
    # Conversations of the grammar share phrases, so only an equal conversation counts as contamination.
    origin = {"source": f"eyas.evalsets, split eval, {PER_FAMILY} of each family", "license": "Apache-2.0"}
    _write(arguments.out, hash_records("eyas-eval", _own(), unit="record"), origin)


def hash_records(name: str, records: Iterable[Sequence[str]], unit: Unit = "ngram") -> NgramHashes:
    """Returns the hashes of a set, with a header that has no source yet. Only the hashes are kept in memory.

    Args:
        name: the name of the set.
        records: the user turns of each record.
        unit: "record" to hash each record as a whole.
    """
    found: dict[int, list[np.ndarray]] = {n: [np.empty(0, dtype=np.uint64)] for n in NGRAM_SIZES}
    num_records = 0
    for texts in records:
        num_records += 1
        words = hash_words(texts)
        for n in NGRAM_SIZES:
            found[n] += [hash_record(words)] if unit == "record" else [hash_ngrams(part, n) for part in words]
    hashes = {n: np.unique(np.concatenate(parts)) for n, parts in found.items()}
    return NgramHashes({"set": name, "unit": unit, "records": num_records}, hashes)


def to_bytes(made: NgramHashes) -> bytes:
    """Returns the content of a file of hashes."""
    counts = {str(n): len(hashes) for n, hashes in made.hashes.items()}
    header = json.dumps({"eyas_ngrams": FORMAT_VERSION, **made.header, "counts": counts})
    return b"".join([header.encode(), b"\n", *(hashes.astype("<u8").tobytes() for hashes in made.hashes.values())])


def _texts(path: Path, key: str) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            value: Any = json.loads(line)[key]
            yield value if isinstance(value, list) else [value]


def _own() -> Iterator[list[str]]:
    for family in FAMILIES:
        for index in range(PER_FAMILY):
            messages = example(family, "eval", index).messages
            yield [message["content"] for message in messages if message["role"] == "user"]


def _write(out: Path, made: NgramHashes, origin: dict[str, str]) -> None:
    data = to_bytes(replace(made, header={**made.header, **origin}))
    write_atomic(out / f"{made.name}.bin", data)
    print(f"{made.name}: {made.header['records']} records, {len(data) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
