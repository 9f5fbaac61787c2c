"""Prompts that stand in an evaluation set, or quote one: a head trained on them would look better than it is.

A record is dropped if one of its user turns shares one n-gram of words with a prompt of a guarded set. The public sets
come with eyas as hashes (evalsets/hashes); any file of the user's can be named too, and is hashed when it is opened.

n = 13 or 8. With 8 a question that only shares a turn of phrase goes as well ("how many more ... than ... does"): of
GSM8K's 7,473 training questions 91 share 8 words with a guarded set, and 4 share 13, which are the same exercise with
other numbers. So 13 is the default: it finds copies, at no cost in good prompts. 8 is for those who would
rather lose one prompt in eighty than have a reworded copy.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes
from eyas.data.sources.record_formats import RejectedRecord, parse_record
from eyas.evalsets import ngram_hashes as ngrams
from eyas.evalsets.ngram_hashes import NGRAM_SIZES, NgramHashes

CONTAMINATED = "contaminated"
DEFAULT_N = 13
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSED_SUFFIXES = (".parquet", ".gz", ".bz2", ".xz", ".zst", ".zip")
SUPPORTED_FILES = "JSON lines (*.jsonl, *.ndjson, *.json) in a shape that eyas prompts reads, or text, a prompt a line"

# What a name guards. Spec-Bench: its mathematical part is 80 questions of GSM8K test, its multi-turn part MT-bench; its
# parts translation, summarisation, question answering and retrieval are not covered: name the file for them.
EVALSET_FILES = {
    "mt-bench": ("mt-bench",),
    "humaneval": ("humaneval",),
    "gsm8k-test": ("gsm8k-test",),
    "spec-bench": ("mt-bench", "gsm8k-test"),
    "eyas-eval": ("eyas-eval",),
}


@dataclass(frozen=True)
class ContaminationFilter:
    """The hashes of all guarded sets. Immutable, and cheap to give to a worker (8 bytes an n-gram)."""

    n: int
    sets: tuple[NgramHashes, ...]

    @classmethod
    def load(
        cls, names: Sequence[str] = tuple(EVALSET_FILES), files: Sequence[Path] = (), n: int = DEFAULT_N
    ) -> "ContaminationFilter":
        """Guards the named sets and the records or lines of `files`; no name and no file guards nothing.

        A file is JSON lines in any shape that `eyas prompts` reads, or plain text, a prompt a line; its hashes are
        made here. Raises InputError for an unknown name, another n, and a file that is missing or says nothing.
        """
        if n not in NGRAM_SIZES:
            raise InputError(f"n-grams of {n} words", f"one of {NGRAM_SIZES}", "choose one of them")
        parts: dict[str, None] = {}
        for name in names:
            if name not in EVALSET_FILES:
                raise InputError(
                    f"the evaluation set {name!r}", f"one of {', '.join(EVALSET_FILES)}", "name its file instead"
                )
            parts |= dict.fromkeys(EVALSET_FILES[name])
        sets = [ngrams.load_set(part) for part in parts]
        return cls(n, (*sets, *(_hash_file(path, n) for path in files)))

    def find_evalset(self, texts: Sequence[str]) -> str | None:
        """The name of the first set that one of the user turns `texts` stands in or quotes; None where they are clean.

        A file of the user's goes by its name.
        """
        words = ngrams.hash_words(texts)
        wanted = {
            "ngram": np.concatenate([np.empty(0, np.uint64), *(ngrams.hash_ngrams(part, self.n) for part in words)]),
            "record": ngrams.hash_record(words),
        }
        for one in self.sets:
            if _overlap(one.hashes[self.n], wanted[one.unit]):
                return one.name
        return None

    def to_json(self) -> dict[str, Any]:
        """For the ledger: n, and of each set where it comes from, how much it holds, and the digest of its hashes."""
        return {
            "n": self.n,
            "sets": [
                {
                    **one.header,
                    "ngrams": len(one.hashes[self.n]),
                    "digest": digest_bytes(one.hashes[self.n].astype("<u8").tobytes()),
                }
                for one in self.sets
            ],
        }


def _overlap(hashes: np.ndarray, wanted: np.ndarray) -> bool:
    if not len(hashes) or not len(wanted):
        return False
    place = np.searchsorted(hashes, wanted)
    place[place == len(hashes)] = 0
    return bool((hashes[place] == wanted).any())


def _hash_file(path: Path, n: int) -> NgramHashes:
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        # Taken as text its bytes would be words that no prompt has: a guard that guards nothing.
        raise InputError(f"{path} as a file of evaluation prompts", SUPPORTED_FILES, "write its prompts as JSON lines")
    try:
        made = ngrams.hash_records(path.name, _read_user_turns(path), (n,))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a file of evaluation prompts", "check the path") from None
    if not len(made.hashes[n]):
        raise InputError(f"no prompt in {path}", SUPPORTED_FILES, "check it")
    return made


def _read_user_turns(path: Path) -> Iterator[list[str]]:
    """The user turns of each record; of a file that is not JSON lines by its name, each line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode("utf-8-sig", "replace")
            if not text.strip():
                continue
            if path.suffix.lower() not in JSON_LINES_SUFFIXES:
                yield [text]
                continue
            try:
                shaped = parse_record(json.loads(text))
            except (ValueError, RecursionError):
                shaped = None
            if shaped is None or isinstance(shaped, RejectedRecord):
                # A guard with holes is none: here a bad line is not passed over.
                raise InputError(f"no prompt in line {number} of {path}", SUPPORTED_FILES, "mend the line") from None
            yield [message.content for message in shaped.messages if message.role == "user"]
