"""Keeps prompts of evaluation sets out: a head that trained on them would look better than it is.

A record is dropped if one of its user turns shares one n-gram of words with a prompt of a guarded set. The public sets
come with eyas as hashes (evalsets/hashes). The user's own files are hashed when they are opened.

n = 13 or 8. With 8, a question that only shares a turn of phrase is dropped as well ("how many more ... than ..."): of
GSM8K's 7,473 training questions 91 share 8 words with a guarded set, and 4 share 13, which are the same exercise with
other numbers. So 13 is the default: it finds copies at no cost in good prompts. 8 costs one prompt in eighty, and finds
reworded copies.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eyas.base.errors import InputError
from eyas.data.sources.record_formats import RejectedRecord, parse_record
from eyas.evalsets import ngram_hashes
from eyas.evalsets.ngram_hashes import NGRAM_SIZES, NgramHashes

CONTAMINATED = "contaminated"
DEFAULT_N = 13
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSED_SUFFIXES = (".parquet", ".gz", ".bz2", ".xz", ".zst", ".zip")

# The sets that a name guards. Spec-Bench: its mathematical part is 80 questions of GSM8K test, its multi-turn part
# MT-bench; its parts translation, summarization, question answering and retrieval are not covered: name the file.
EVALSET_FILES = {
    "mt-bench": ("mt-bench",),
    "humaneval": ("humaneval",),
    "gsm8k-test": ("gsm8k-test",),
    "spec-bench": ("mt-bench", "gsm8k-test"),
    "eyas-eval": ("eyas-eval",),
}


@dataclass(frozen=True)
class ContaminationFilter:
    """The hashes of all guarded sets. Immutable, and cheap to pass to a worker (8 bytes an n-gram)."""

    n: int
    sets: tuple[NgramHashes, ...]

    @classmethod
    def load(
        cls, names: Sequence[str] = tuple(EVALSET_FILES), files: Sequence[Path] = (), n: int = DEFAULT_N
    ) -> "ContaminationFilter":
        """Loads the named sets and hashes the records of `files`.

        Args:
            names: Keys of EVALSET_FILES.
            files: JSON lines in any shape that `eyas prompts` reads, or plain text with a prompt a line.
            n: Words in an n-gram, 13 or 8.

        Raises:
            InputError: The name or n is unknown, or a file is missing or has no prompt.
        """
        if n not in NGRAM_SIZES:
            raise InputError(f"n-grams of {n} words are not supported", f"Use {' or '.join(map(str, NGRAM_SIZES))}")
        parts: dict[str, None] = {}
        for name in names:
            if name not in EVALSET_FILES:
                raise InputError(f"There is no evaluation set {name!r}", "Name its file in prompts.decontaminate")
            parts |= dict.fromkeys(EVALSET_FILES[name])
        return cls(n, (*map(ngram_hashes.load_set, parts), *(_hash_file(path, n) for path in files)))

    def find_evalset(self, texts: Sequence[str]) -> str | None:
        """Returns the name of the first set that one of the user turns `texts` quotes; None for a clean record.

        A file of the user's goes by its name.
        """
        words = ngram_hashes.hash_words(texts)
        hashes = {
            "ngram": np.concatenate(
                [np.empty(0, np.uint64), *(ngram_hashes.hash_ngrams(part, self.n) for part in words)]
            ),
            "record": ngram_hashes.hash_record(words),
        }
        return next((each.name for each in self.sets if _overlaps(each.hashes[self.n], hashes[each.unit])), None)


def _overlaps(guarded: np.ndarray, hashes: np.ndarray) -> bool:
    if not len(guarded) or not len(hashes):
        return False
    index = np.searchsorted(guarded, hashes)
    index[index == len(guarded)] = 0
    return bool((guarded[index] == hashes).any())


def _hash_file(path: Path, n: int) -> NgramHashes:
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        # Read as text, its bytes would be words that no prompt has, and nothing would be guarded.
        raise InputError(f"The evaluation prompts of {path} cannot be read", "Write them as JSON lines (.jsonl)")
    try:
        hashed = ngram_hashes.hash_records(path.name, _read_user_turns(path), (n,))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Check prompts.decontaminate") from None
    if not len(hashed.hashes[n]):
        raise InputError(f"{path} holds no evaluation prompt", "Check prompts.decontaminate")
    return hashed


def _read_user_turns(path: Path) -> Iterator[list[str]]:
    """Yields the user turns of each record; of a file that is not JSON lines by its name, each line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode("utf-8-sig", "replace")
            if not text.strip():
                continue
            if path.suffix.lower() not in JSON_LINES_SUFFIXES:
                yield [text]
                continue
            try:
                parsed = parse_record(json.loads(text))
            except (ValueError, RecursionError):
                parsed = None
            if parsed is None or isinstance(parsed, RejectedRecord):
                # A guard with gaps is useless, so a bad line is not skipped here.
                raise InputError(
                    f"Line {number} of {path} holds no prompt", 'Write it as JSON, for example {"prompt": "..."}'
                ) from None
            yield [message.content for message in parsed.messages if message.role == "user"]
