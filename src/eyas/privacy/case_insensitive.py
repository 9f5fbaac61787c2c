"""Compares texts without case, accents and look-alike characters. data/characters.toml lists those characters."""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

from eyas.base.config import load_toml

_CHARACTERS = load_toml(Path(__file__).parent / "data/characters.toml")
_WITHOUT_ACCENT = str.maketrans(_CHARACTERS["without_accent"])
_NASAL = re.compile("[ङञणनम]\u094d(?=[क-ह])")  # "हिन्दी" is also written "हिंदी"
_VIRAMA = 9  # its combining class; without it, a Hindi word is another one
_PLAIN = {ord(char): plain for plain, chars in _CHARACTERS["plain"].items() for char in chars}
_SHORT = 128  # characters of a text that is put into lower case anew each time


def lower_text(text: str) -> str:
    """Returns the text in lower case. The result has the same length, so positions in both texts are equal."""
    return _lower_cached(text) if len(text) > _SHORT else _lower(text)


@lru_cache(maxsize=4)
def plain_text(text: str) -> str:
    """Returns the text with ASCII characters for digits of other scripts, full-width forms, quotes, blanks and hyphens.

    The result has the same length, so positions in both texts are equal.
    """
    return text if text.isascii() else text.translate(_PLAIN)


def _lower(text: str) -> str:
    # These three letters are special: `lower` changes the length of İ, and re.IGNORECASE matches ı and ſ with i and s.
    return text.lower() if text.isascii() else text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()


_lower_cached = lru_cache(maxsize=4)(_lower)  # dozens of patterns test one text, one after another


def strip_accents(word: str) -> str:
    """Returns the word without its accents: "wiadomosc" for "wiadomość". Arabic and Hindi words get one spelling."""
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFKD", word.translate(_WITHOUT_ACCENT))
    return _NASAL.sub("ं", "".join(char for char in parts if unicodedata.combining(char) in (0, _VIRAMA)))


fold_word = lru_cache(maxsize=100_000)(strip_accents)
"""Returns the spelling of an Arabic or a Hindi word under which word lists and dictionaries hold it."""
