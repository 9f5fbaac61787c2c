"""Keeps prompts of evaluation sets out: a head that trained on them would look better than it is.

A record is dropped if one of its user turns shares one n-gram of words with a prompt of a guarded set. The public sets
come with eyas as hashes (evalsets/hashes). The user's own files are hashed when they are opened.

n = 13 or 8. With 8, a question that only shares a turn of phrase is dropped as well ("how many more ... than ..."): of
GSM8K's 7,473 training questions 91 share 8 words with a guarded set, and 4 share 13, which are the same exercise with
other numbers. So 13 is the default: it finds copies at no cost in good prompts. 8 costs one prompt in eighty, and finds
reworded copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from eyas.base.errors import InputError
from eyas.base.storage import StoragePath
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import SourceConfig, read_records
from eyas.evalsets import ngram_hashes
from eyas.evalsets.ngram_hashes import NGRAM_SIZES, NgramHashes

CONTAMINATED = "contaminated"
DEFAULT_N = 13
EvalSet = Literal["mt-bench", "humaneval", "gsm8k-test", "spec-bench", "eyas-eval"]
ALL_EVALSETS: tuple[EvalSet, ...] = get_args(EvalSet)
# The sets that a name guards. Spec-Bench: its mathematical part is 80 questions of GSM8K test, its multi-turn part
# MT-bench; its parts translation, summarization, question answering and retrieval are not covered: name the file.
EVALSET_FILES: dict[EvalSet, tuple[str, ...]] = {
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
        cls, names: Sequence[EvalSet] = ALL_EVALSETS, files: Sequence[str] = (), n: int = DEFAULT_N
    ) -> "ContaminationFilter":
        """Loads the named sets and hashes the records of `files`.

        Args:
            names: Public sets.
            files: Files of evaluation prompts, in any format that `eyas prompts` reads, at any fsspec URL.
            n: Words in an n-gram, 13 or 8.

        Raises:
            InputError: A file is missing, or one of its records holds no prompt.
        """
        assert n in NGRAM_SIZES, f"n-grams of {n} words are not in the shipped files"
        parts = dict.fromkeys(file for name in names for file in EVALSET_FILES[name])
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


def _hash_file(path: str, n: int) -> NgramHashes:
    hashed = ngram_hashes.hash_records(StoragePath(path).name, _read_user_turns(path), (n,))
    if not len(hashed.hashes[n]):
        raise InputError(f"{path} holds no evaluation prompt", "Check prompts.decontaminate")
    return hashed


def _read_user_turns(path: str) -> Iterator[list[str]]:
    """Yields the user turns of each record.

    Raises InputError for a bad record. If it were skipped, its prompts would not be guarded.
    """
    for record in read_records(SourceConfig(path)):
        parsed = parse_record(record.value) if record.is_json else None
        if not isinstance(parsed, ParsedRecord):
            raise InputError(f"{record.location} holds no prompt", 'Write it as JSON, for example {"prompt": "..."}')
        yield [message.content for message in parsed.messages]
