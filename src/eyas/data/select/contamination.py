"""Drops prompts that occur in evaluation sets. A head that was trained on them would get too high scores there.

A record is dropped if one of its user turns shares an n-gram (n words in a row) with a prompt of a guarded set. Guarded
sets are the public sets that the recipe names, and the user's own files. eyas ships the hashes of the public sets
(evalsets/hashes), and hashes the user's files when it opens them.

n is 13. Measured on the 7,473 training questions of GSM8K: 4 share 13 words with a guarded set, and all 4 are the
same exercise with other numbers. 91 share 8 words, most of them only a phrase such as "how many more ... than".
So n = 8 also finds reworded copies, but drops one good prompt in eighty.
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

CONTAMINATED = "contaminated"
NGRAM_SIZE = 13  # words; the shipped files hold n-grams of 8 words, too
EvalSet = Literal["mt-bench", "humaneval", "gsm8k-test", "spec-bench", "eyas-eval"]
ALL_EVALSETS: tuple[EvalSet, ...] = get_args(EvalSet)
# The hash files of each set. Spec-Bench contains 80 questions of GSM8K test and all of MT-bench. Its other parts
# (translation, summarization, question answering, retrieval) are not covered: name a file in prompts.decontaminate.
EVALSET_FILES: dict[EvalSet, tuple[str, ...]] = {name: (name,) for name in ALL_EVALSETS}
EVALSET_FILES["spec-bench"] = ("mt-bench", "gsm8k-test")


@dataclass(frozen=True)
class ContaminationFilter:
    """The hashes of all guarded sets. Immutable; it needs 8 bytes for each n-gram.

    Attributes:
        sets: The hashes of each guarded set.
    """

    sets: tuple[ngram_hashes.NgramHashes, ...]

    @classmethod
    def load(cls, names: Sequence[EvalSet] = ALL_EVALSETS, files: Sequence[str] = ()) -> "ContaminationFilter":
        """Loads the named sets and hashes the records of `files`.

        Args:
            names: The public sets to guard.
            files: Files of evaluation prompts, in any format that `eyas prompts` reads, at any fsspec URL.

        Raises:
            InputError: A file is missing, or one of its records holds no prompt.
        """
        parts = dict.fromkeys(file for name in names for file in EVALSET_FILES[name])
        return cls((*map(ngram_hashes.load_set, parts), *map(_hash_file, files)))

    def find_evalset(self, texts: Sequence[str]) -> str | None:
        """Returns the name of the first guarded set that shares an n-gram with a record, for example "gsm8k-test".

        Returns None if no set does. The name of a user's file is its file name.

        Args:
            texts: The user turns of the record.
        """
        words = ngram_hashes.hash_words(texts)
        hashes = {"ngram": _hash_ngrams(words), "record": ngram_hashes.hash_record(words)}
        return next((each.name for each in self.sets if _overlaps(each.hashes[NGRAM_SIZE], hashes[each.unit])), None)


def _overlaps(guarded: np.ndarray, hashes: np.ndarray) -> bool:
    if not len(guarded):
        return False
    return bool((guarded.take(np.searchsorted(guarded, hashes), mode="clip") == hashes).any())


def _hash_file(path: str) -> ngram_hashes.NgramHashes:
    ngrams = _hash_ngrams(ngram_hashes.hash_words(_read_user_turns(path)))
    if not len(ngrams):
        raise InputError(f"{path} has no evaluation prompt", "Correct prompts.decontaminate")
    return ngram_hashes.NgramHashes({"set": StoragePath(path).name, "unit": "ngram"}, {NGRAM_SIZE: np.unique(ngrams)})


def _hash_ngrams(texts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.uint64), *(ngram_hashes.hash_ngrams(words, NGRAM_SIZE) for words in texts)])


def _read_user_turns(path: str) -> Iterator[str]:
    """Yields the user turns of all records of a file.

    Raises InputError for a record that cannot be read, because otherwise its prompts would not be guarded.
    """
    for record in read_records(SourceConfig(path)):
        parsed = parse_record(record.value)
        if not isinstance(parsed, ParsedRecord):
            raise InputError(f"{record.location} holds no prompt", 'Write it as JSON, for example {"prompt": "..."}')
        yield from (message.content for message in parsed.messages)
