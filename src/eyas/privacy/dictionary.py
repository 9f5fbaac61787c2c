"""Dictionaries of the languages with Latin letters, which tell known words from unknown ones.

A word that no dictionary contains is a name, a brand or a misspelling. The dictionaries hold all inflected forms and
come from simplemma (MIT). As Python objects they would take 1 GB. Therefore each one is stored as a sorted array of
CRC-32 codes in the user's cache directory and is mapped into memory: 4 bytes for each form, 24 MB for Polish. Two words
may have the same code: in Polish, 3 of 2,000 unknown words count as known; in other languages fewer. Each form is also
stored without its accents, because people leave them out.
"""

import re
from bisect import bisect_left
from functools import cache, lru_cache
from importlib.metadata import version
from zlib import crc32

from eyas.base.cached_file import load_cached
from eyas.privacy.case_insensitive import fold_word, strip_accents
from eyas.privacy.cjk_words import CJK_LANGUAGES
from eyas.privacy.word_lists import LANGUAGES, UNICASED, read_data_file
from eyas.privacy.words import cut_prefixes

_VERSION = 3  # raised when the format of the file changes
_MAX_FILES = 2 * len(LANGUAGES)  # of this version and of the one before
_MIN_MISSPELLING = 8  # letters from which on a misspelling is likelier than a name that differs from a word in a letter
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LINKS = ("", "s", "n", "en", "es", "er", "e")  # between the parts of a compound
_MIN_PART = 4  # letters of a compound's part
_CLITICS = {language: re.compile(pattern) for language, pattern in read_data_file("data/clitics").items()}
_PRONOUN = re.compile(r"(?<=.{2})(?:ني|ي|ك|كم|ه|ها|هم|هن|نا)\Z")  # "my", "your" and others behind an Arabic word
WITH_COMPOUNDS = ("de", "nl", "sv")


@lru_cache(maxsize=100_000)
def is_known(lower: str, language: str) -> bool:
    """Returns True if the dictionary of `language` or of English contains a word.

    Args:
        lower: The word in lower case. German nouns are found in lower case, too.
        language: The language (ISO 639-1).
    """
    if language in UNICASED:
        return _is_known_form(fold_word(lower), language)
    if _contains(lower, language) or _contains(lower, "en"):
        return True
    if language == "it" and lower.endswith(("tà", "tù", "dì")):
        return True  # "novità", "lunedì": the dictionary holds few words that never change
    clitic = _CLITICS[language].search(lower) if language in _CLITICS else None
    if clitic is None:
        return False
    stem = strip_accents(lower[: clitic.start()])
    return any(_contains(stem + ending, language) for ending in ("", "r", "re", "e", "s"))


def _is_known_form(form: str, language: str) -> bool:
    """Returns True for a known Hindi word, or for an Arabic word that is known without its prefixes and its pronoun."""
    if language != "ar" or _has_form(form, language):
        return _has_form(form, language)
    for rest in cut_prefixes(form):
        pronoun = _PRONOUN.search(rest)
        stem = rest[: pronoun.start()] if pronoun else rest
        stems = (rest, rest.removeprefix("س"), stem, stem.removesuffix("ا"), stem.removesuffix("ت") + "ه")
        if any(_has_form(each, language) for each in stems):
            return True
    return False


@lru_cache(maxsize=100_000)
def is_compound(lower: str, language: str) -> bool:
    """Returns True for a compound of two known words in German, Dutch or Swedish: "terminverschiebung".

    Many last names are compounds, too: "steinbach".
    """
    if language not in WITH_COMPOUNDS:
        return False
    for cut in range(_MIN_PART, len(lower) - _MIN_PART + 1):
        first, last = lower[:cut], lower[cut:]
        if _contains(last, language):
            parts = (first.removesuffix(link) for link in _LINKS if first.endswith(link))
            if any(len(part) >= _MIN_PART - 1 and _contains(part, language) for part in parts):
                return True
    return False


@lru_cache(maxsize=100_000)
def is_misspelling(lower: str, language: str) -> bool:
    """Returns True for a long word that is one typing error away from a known word: "portugese"."""
    if len(lower) < _MIN_MISSPELLING:
        return False
    halves = [(lower[:k], lower[k:]) for k in range(len(lower) + 1)]
    near = {a + b[1:] for a, b in halves if b} | {a + b[1] + b[0] + b[2:] for a, b in halves if len(b) > 1}
    near |= {a + letter + b[skip:] for a, b in halves for letter in _LETTERS for skip in (0, 1)}
    return any(_has_code(code, language) or _has_code(code, "en") for code in {crc32(word.encode()) for word in near})


def _contains(lower: str, language: str) -> bool:
    return _has_form(lower, language) or (language == "de" and _has_form(lower.capitalize(), language))


def _has_form(word: str, language: str) -> bool:
    return _has_code(crc32(word.encode()), language)


def _has_code(code: int, language: str) -> bool:
    if language not in LANGUAGES or language in CJK_LANGUAGES:
        return False
    codes = _load_codes(language)
    place = bisect_left(codes, code)
    return place < len(codes) and codes[place] == code


@cache
def _load_codes(language: str) -> memoryview:
    """Returns the sorted CRC-32 codes of all words of a language. Builds the file in the cache directory once."""
    version_key = f"{language}-{version('simplemma')}-{_VERSION}"
    return load_cached("words", version_key, lambda: _build_codes(language), _MAX_FILES).cast("I")


def _build_codes(language: str) -> bytes:
    import numpy as np
    from simplemma.strategies.dictionaries.stream_dictionary_factory import StreamDictionaryFactory

    forms = StreamDictionaryFactory(cache_max_size=1).get_dictionary(language)  # forms one by one, not all at once
    spellings = (spelling for form in forms for spelling in {form, strip_accents(form)})
    return np.unique(np.fromiter((crc32(spelling.encode()) for spelling in spellings), np.uint32)).tobytes()
