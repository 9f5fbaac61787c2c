"""Whether a word is in a language's dictionary: what no dictionary holds is a name, a brand or a slip.

Dictionaries of inflected forms come from simplemma (MIT). In memory they would take a gigabyte; here each is a sorted
row of 32-bit codes in the user's cache directory, mapped into the process: 4 bytes a form, 24 MB for Polish. Two words
may share a code: three unknown words in two thousand (Polish; fewer elsewhere) pass for known ones.
Forms stand there without their accents as well: so they are written in a hurry.
"""

import contextlib
import hashlib
import mmap
import re
from bisect import bisect_left
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from zlib import crc32

from eyas.base.environment import cache_directory, remove_all_but_newest
from eyas.base.errors import EyasError
from eyas.base.storage import write_atomic
from eyas.privacy.lexicon import LANGUAGES
from eyas.privacy.tokens import strip_accents

_FORM = 2  # raised when the file's form changes
_DIGEST = 32  # bytes before the codes
_FILES = 2 * len(LANGUAGES)  # of this version and of the one before
_SLIP = 8  # letters of a word from which on a slip is likelier than a name that differs from a word in one letter
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LINKS = ("", "s", "n", "en", "es", "er", "e")  # between the parts of a compound
_PART = 4  # letters of a compound's part
# Pronouns behind a verb: "ayúdame", "dimmelo", "ajudá-lo".
_CLITICS = {
    "es": re.compile(r"(?<=[^\W\d_]{2})(?:me|te|se|nos|os)?(?:l[aeo]s?|me|te|se|nos|os)\Z"),
    "it": re.compile(r"(?<=[^\W\d_]{2})(?:m?m[ie]|t[ie]|s[ie]|c[ie]|v[ie]|glie)?(?:l[aeio]|ne|mi|ti|si|ci|vi|gli)\Z"),
    "pt": re.compile(r"(?<=[^\W\d_]{2})-?(?:me|te|se|nos|lhes?|l?[ao]s?)\Z"),
}
_COMPOUND = {"de", "nl", "sv"}


@lru_cache(maxsize=100_000)
def is_known(lower: str, language: str) -> bool:
    """Whether a word (in lower case) is a word of the language or of English; in German a noun too."""
    if _holds(lower, language) or _holds(lower, "en"):
        return True
    if language == "de":
        return _holds(lower.capitalize(), language)
    if language == "it" and lower.endswith(("tà", "tù", "dì")):
        return True  # "novità", "lunedì": the dictionary holds few words that never change
    clitic = _CLITICS[language].search(lower) if language in _CLITICS else None
    if clitic is None:
        return False
    stem = strip_accents(lower[: clitic.start()])
    return any(_holds(stem + ending, language) for ending in ("", "r", "re", "e", "s"))


@lru_cache(maxsize=100_000)
def is_compound(lower: str, language: str) -> bool:
    """Whether a word is two known words in one: "Terminverschiebung". So are many last names: "Steinbach"."""
    return language in _COMPOUND and _is_compound(lower, language)


@lru_cache(maxsize=100_000)
def is_misspelling(lower: str, language: str) -> bool:
    """Whether one letter more, less, other or exchanged makes a long word a known one: "portugese"."""
    if len(lower) < _SLIP:
        return False
    halves = [(lower[:k], lower[k:]) for k in range(len(lower) + 1)]
    near = {a + b[1:] for a, b in halves if b} | {a + b[1] + b[0] + b[2:] for a, b in halves if len(b) > 1}
    near |= {a + letter + b[skip:] for a, b in halves for letter in _LETTERS for skip in (0, 1)}
    return any(_holds(word, language) or _holds(word, "en") for word in near)


def _is_compound(lower: str, language: str) -> bool:
    for cut in range(_PART, len(lower) - _PART + 1):
        last = lower[cut:]
        if not (_holds(last, language) or (language == "de" and _holds(last.capitalize(), language))):
            continue
        for link in _LINKS:
            first = lower[:cut].removesuffix(link) if link else lower[:cut]
            if len(first) < _PART - 1 or (link and not lower[:cut].endswith(link)):
                continue
            if _holds(first, language) or (language == "de" and _holds(first.capitalize(), language)):
                return True
    return False


def _holds(word: str, language: str) -> bool:
    if language not in LANGUAGES:
        return False
    codes, code = _codes(language), crc32(word.encode())
    place = bisect_left(codes, code)
    return place < len(codes) and codes[place] == code


@cache
def _codes(language: str) -> memoryview:
    """The codes of the forms of a language, sorted; made in seconds once, then mapped from the cache directory."""
    path = cache_directory() / f"words-{language}-{version('simplemma')}-{_FORM}.bin"
    with contextlib.suppress(OSError, ValueError):  # not there, or damaged: it is made again
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST]:
            return data[_DIGEST:].cast("I")
    made = _make(language)
    with contextlib.suppress(EyasError, OSError):  # a place that cannot be written: the next process makes it as well
        write_atomic(path, hashlib.sha256(made).digest() + made)
        remove_all_but_newest(Path(path.parent), "words-*.bin", _FILES)
    return memoryview(made).cast("I")


def _make(language: str) -> bytes:
    import numpy as np
    from simplemma.strategies.dictionaries.stream_dictionary_factory import StreamDictionaryFactory

    forms = StreamDictionaryFactory(cache_max_size=1).get_dictionary(language)  # forms one by one, no dictionary of all
    written = (way for form in forms for way in {form, strip_accents(form)})
    return np.unique(np.fromiter((crc32(way.encode()) for way in written), np.uint32)).tobytes()
