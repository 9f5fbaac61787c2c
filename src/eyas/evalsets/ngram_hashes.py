"""Hashes of the word n-grams of evaluation sets: enough to recognize their prompts in other data, but not to read them.

`eyas prompts` drops records that share n-grams with an evaluation set (eyas.data.select.contamination).

    words      text in NFKC and lower case. A word is a run of letters, digits and underscores, or one character of a
               language that puts no blanks between words.
    n-gram     n words in a row. It counts if at least half of them have 3 letters or more (or are such a character):
               "1, 2, 3, 4, ..." stands in every second program.
    short      a text of fewer than n words is one n-gram; it equals only the same whole text
    hash       64 bits: blake2b of each word, combined as a polynomial, so that all n-grams of a text cost a few array
               operations

A file of hashes/ is one line of JSON (the header) and then, for each n of the header, the sorted hashes, little-endian.
The sets of eyas.evalsets are hashed by conversation (unit "record"), because all of their texts share n-grams.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eyas.base.errors import InputError

FORMAT_VERSION = 1  # of words, n-grams and hashes: another version needs new files
HASHES = Path(__file__).parent / "hashes"

Unit = Literal["ngram", "record"]

# CJK, kana, Thai, Lao, Khmer, Burmese: each character is a word.
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(f"[{_ALONE}]|[^\\W{_ALONE}]+")
_LONG = re.compile(f"[{_ALONE}]|[^\\W\\d_]{{3}}")
_BASE = 0x9E3779B97F4A7C15  # odd, from the golden ratio


@dataclass(frozen=True)
class NgramHashes:
    """The hashes of one evaluation set, by n: uint64, sorted, each once."""

    header: Mapping[str, Any]
    hashes: Mapping[int, np.ndarray]

    @property
    def name(self) -> str:
        """The name of the set."""
        return self.header["set"]

    @property
    def unit(self) -> Unit:
        """The unit that one hash stands for: an n-gram or a whole record."""
        return self.header["unit"]


def hash_words(texts: Iterable[str]) -> list[np.ndarray]:
    """Returns the word hashes of each text, uint64. The lowest bit of a hash is set if the word is long."""
    return [np.array([_hash_word(word) for word in _split_words(text)], dtype=np.uint64) for text in texts]


def hash_ngrams(words: np.ndarray, n: int) -> np.ndarray:
    """Returns the hashes of the relevant n-grams in order, uint64; one hash of the whole text if it is shorter."""
    if len(words) == 0:
        return words
    if len(words) < n:
        return hash_record([words])
    value = np.convolve(words, _powers(n)[::-1], "valid")  # of integers: exact, modulo 2**64
    num_long = np.convolve(words & np.uint64(1), np.ones(n, dtype=np.uint64), "valid")
    return _finish(value, n)[num_long * np.uint64(2) >= n]


def hash_record(words: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one hash of a whole record, its texts joined, as uint64 [1]."""
    all_words = words[0] if len(words) == 1 else np.concatenate([np.empty(0, dtype=np.uint64), *words])
    return _finish((all_words * _powers(len(all_words))).sum(keepdims=True), len(all_words))


def load_set(name: str) -> NgramHashes:
    """Returns a set that ships with eyas. Raises InputError for an unknown name and for a damaged file."""
    path = HASHES / f"{name}.bin"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in HASHES.glob("*.bin")))
        raise InputError(f"eyas has no hashes of {name!r}", f"Use one of {known}, or the path of a file of your own")
    return read_file(path)


def read_file(path: Path) -> NgramHashes:
    """Reads a file of hashes. Raises InputError for a damaged file and for another version."""
    line, _, data = path.read_bytes().partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(line)
        version = header.pop("eyas_ngrams")
        counts = {int(n): int(count) for n, count in header.pop("counts").items()}
        values = np.frombuffer(data, dtype="<u8").astype(np.uint64)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path} is not a file of n-gram hashes", "Install eyas again") from None
    if version != FORMAT_VERSION or len(values) != sum(counts.values()):
        problem = f"{path} has version {version} and {len(values)} hashes, not version {FORMAT_VERSION} and"
        raise InputError(f"{problem} {sum(counts.values())}", "Install eyas again")
    parts = np.split(values, np.cumsum(list(counts.values()))[:-1])
    return NgramHashes(header, dict(zip(counts, parts, strict=True)))


def _split_words(text: str) -> list[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.lower())


@lru_cache(maxsize=2**16)
def _hash_word(word: str) -> int:
    value = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
    return value | 1 if _LONG.search(word) else value & ~1


def _powers(num: int) -> np.ndarray:
    """Returns _BASE to the power num - 1, ..., 1, 0, modulo 2**64."""
    return np.multiply.accumulate(np.array([1] + [_BASE] * num, dtype=np.uint64))[:num][::-1]


def _finish(value: np.ndarray, n: int) -> np.ndarray:
    """Mixes the number of words n into the hash, and spreads its bits."""
    return mix_bits(value + np.uint64(n * _BASE & 0xFFFFFFFFFFFFFFFF))


def mix_bits(value: np.ndarray) -> np.ndarray:
    """Mixes the bits of each number with the function of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
