"""Patterns that ignore case, several times as fast as re.IGNORECASE: a test in lower case comes first.

Python's engine skips an alternative by its first letter only where case counts, and most texts, and most of the words
before a number, match no alternative at all.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

_PART = re.compile(r"\\.|\(\?P|.", re.DOTALL)  # an escape, a group's name, a character
_LETTERS = re.compile(r"[^\W\d_]+")
_WITHOUT_ACCENT = str.maketrans({"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "ß": "ss"})
_SHORT = 128  # characters of a text that is put into lower case anew each time


class PrefilteredPattern:
    """A pattern with a fast test: a text is searched only if the test, which is part of every match, is found first.

    The test is searched in the text in lower case.
    """

    def __init__(self, exact: str, test: str, flags: int = 0) -> None:
        """Compiles both patterns; the test is put into lower case."""
        self._exact = re.compile(exact, flags)
        lower = _PART.sub(lambda part: part[0] if part[0][0] in "\\(" else part[0].lower(), test)
        self._test = re.compile(lower, flags & ~re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yields the matches, as re.Pattern.finditer does."""
        return self._exact.finditer(text) if self._test.search(lower_text(text)) else iter(())


class CaseInsensitivePattern(PrefilteredPattern):
    """A pattern, written without (?i), that matches no empty text, with methods as those of re.Pattern.

    A part that respects case, (?-i:A), may not stand in a part that the pattern excludes: the test in lower case would
    exclude too much.
    """

    def __init__(self, pattern: str, flags: int = 0) -> None:
        """Compiles the pattern."""
        super().__init__(pattern, pattern, flags | re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yields the matches, as re.Pattern.finditer does."""
        match = self.search(text)
        while match:
            yield match
            match = self.search(text, match.end())

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Returns the first match in text[start:end]."""
        lower = lower_text(text)
        test = self._test.search(lower, start, end)
        while test:  # the pattern matches nowhere else; and not here where it respects case
            match = self._exact.match(text, test.start(), end)
            if match:
                return match
            test = self._test.search(lower, test.start() + 1, end)
        return None

    def match(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Returns the match that begins at `start`."""
        return self._exact.match(text, start, end) if self._test.match(lower_text(text), start, end) else None


def lower_text(text: str) -> str:
    """Returns the text in lower case, with the same length, as re.IGNORECASE compares letters."""
    return _lower_cached(text) if len(text) > _SHORT else _lower(text)


@lru_cache(maxsize=4)
def letter_runs(text: str) -> frozenset[str]:
    """Returns the runs of letters in lower case. A pattern that needs a certain word is skipped if it is not here."""
    return frozenset(_LETTERS.findall(lower_text(text)))


def _lower(text: str) -> str:
    # Of no other letter the lower case is longer, or none although the engine takes it for an ASCII letter.
    return text.lower() if text.isascii() else text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()


_lower_cached = lru_cache(maxsize=4)(_lower)  # dozens of patterns test one text, one after another


def strip_accents(word: str) -> str:
    """Returns the word without its accents: "wiadomosc" for "wiadomość"."""
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFKD", word.translate(_WITHOUT_ACCENT))
    return "".join(char for char in parts if not unicodedata.combining(char))
