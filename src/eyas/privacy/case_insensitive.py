"""Regular expressions that ignore case and are several times faster than with re.IGNORECASE.

Each pattern is first searched in the text in lower case, as a case-sensitive pattern. For those, Python's `re` skips
most alternatives by their first letter. Most texts match nothing, so this first search is all that runs.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from eyas.base.config import load_toml

_CHARACTERS = load_toml(Path(__file__).parent / "data/characters.toml")
_PART = re.compile(r"\\.|\(\?P|.", re.DOTALL)  # an escape, a group's name, a character
_WITHOUT_ACCENT = str.maketrans(_CHARACTERS["without_accent"])
_NASAL = re.compile("[ङञणनम]\u094d(?=[क-ह])")  # "हिन्दी" is also written "हिंदी"
_VIRAMA = 9  # its combining class; without it, a Hindi word is another one
_PLAIN = {ord(char): plain for plain, chars in _CHARACTERS["plain"].items() for char in chars}
_SHORT = 128  # characters of a text that is put into lower case anew each time


class PrefilteredPattern:
    """A pattern that is searched only in texts that contain a second, faster pattern: the test.

    Requirement: every match of the pattern contains a match of the test. The test is searched in the text in lower
    case.
    """

    def __init__(self, exact: str, test: str, flags: int = 0) -> None:
        """Compiles both patterns.

        Args:
            exact: The pattern whose matches are returned.
            test: The fast pattern. Its letters are converted to lower case.
            flags: Flags of `re` for the pattern.
        """
        self._exact = re.compile(exact, flags)
        lower = _PART.sub(lambda part: part[0] if part[0][0] in "\\(" else part[0].lower(), test)
        self._test = re.compile(lower)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yields the matches, as re.Pattern.finditer does."""
        return self._exact.finditer(text) if self._test.search(lower_text(text)) else iter(())


class CaseInsensitivePattern(PrefilteredPattern):
    """A pattern that ignores case.

    Requirements: the pattern has no (?i) and matches no empty text. It has no case-sensitive group, such as (?-i:A),
    inside a negative lookaround, because the search in lower case would exclude too much.
    """

    def __init__(self, pattern: str) -> None:
        """Compiles the pattern."""
        super().__init__(pattern, pattern, re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yields the matches, as re.Pattern.finditer does."""
        lower, start = lower_text(text), 0
        while test := self._test.search(lower, start):  # the pattern matches nowhere else
            match = self._exact.match(text, test.start())
            if match:
                yield match
            start = match.end() if match else test.start() + 1  # no match where the pattern respects case


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
