"""Patterns that ignore case, several times as fast: a test in lower case comes first.

Python's engine passes over an alternative by its first letter only where case counts, and most texts and most of the
words before a number match no alternative at all.
"""

import re
import sys
from collections.abc import Iterator
from functools import lru_cache

_PART = re.compile(r"\\.|\(\?P|.", re.DOTALL)  # an escape, a group's name, a character
_LETTERS = re.compile(r"[^\W\d_]+")
_SHORT = 128  # characters of a text that is put into lower case anew each time


class PrefilteredPattern:
    """A pattern that is searched only where a test succeeds: a pattern in lower case that every match holds."""

    def __init__(self, exact: str, test: str, flags: int = 0) -> None:
        self._exact = re.compile(exact, flags)
        lower = _PART.sub(lambda part: part[0] if part[0][0] in "\\(" else part[0].lower(), test)
        self._test = re.compile(lower, flags & ~re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._exact.finditer(text) if self._test.search(lower_text(text)) else iter(())

    def search(self, text: str) -> re.Match[str] | None:
        return self._exact.search(text) if self._test.search(lower_text(text)) else None


class CaseInsensitivePattern(PrefilteredPattern):
    """A pattern, without (?i), that matches no empty text; and the methods of re.Pattern that are used here.

    What it excludes may hold no part that heeds case, (?-i:A): the test in lower case would exclude too much.
    """

    def __init__(self, pattern: str, flags: int = 0) -> None:
        super().__init__(pattern, pattern, flags | re.IGNORECASE)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        found = self.search(text)
        while found:
            yield found
            found = self.search(text, found.end())

    def search(self, text: str, begin: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        lower = lower_text(text)
        test = self._test.search(lower, begin, end)
        while test:  # the pattern matches nowhere else; and not here where it heeds case
            found = self._exact.match(text, test.start(), end)
            if found:
                return found
            test = self._test.search(lower, test.start() + 1, end)
        return None

    def match(self, text: str, begin: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        return self._exact.match(text, begin, end) if self._test.match(lower_text(text), begin, end) else None


def lower_text(text: str) -> str:
    """The text in lower case as a pattern that ignores case takes it, letter for letter: as long as the text."""
    return _lowered(text) if len(text) > _SHORT else _lower(text)


@lru_cache(maxsize=4)
def letter_runs(text: str) -> frozenset[str]:
    """The runs of letters in a text, in lower case: a pattern that needs a word is searched only where it stands."""
    return frozenset(_LETTERS.findall(lower_text(text)))


def _lower(text: str) -> str:
    # Of no other letter the lower case is longer, or none although the engine takes it for an ASCII letter.
    return text.lower() if text.isascii() else text.replace("İ", "i").replace("ı", "i").replace("ſ", "s").lower()


_lowered = lru_cache(maxsize=4)(_lower)  # one text is tested by dozens of patterns, one after another
