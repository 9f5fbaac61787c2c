"""Weighs the words around a name or a value, with the weights of a linear model for each language.

private_names.py asks it for names, private_values.py for numbers and codes. benchmarks/fit_context.py fits the weights.
A feature is a word with its place: `w:rent` is anywhere near, `b:landlord` is before, `a:called` is after. Long words
also count with their first letters (`w:vermie*`), so that other forms of a word are known.

    text                                          some features of the name
    my landlord Tevita Fifita keeps my deposit    1:my_landlord, b:landlord, 9:keeps_my, a:keeps, w:deposit
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.word_lists import PACKAGE, read_data_file
from eyas.privacy.words import LETTERS

MASK = "|"  # stands for a name
_LINE = "¶"  # stands for a line break, and for both ends of the text
_BESIDE = 5  # tokens on each side whose side counts
_REACH = 40  # tokens on each side
_CHARACTERS = frozenset(("zh", "ja"))  # languages in which each character is a token
_TOKEN = re.compile(rf"{LETTERS}|\d+|[^\w\s]|_|\n")
_CHARACTER = re.compile(r"[A-Za-z]+|\d+|\S|\n")
_STEMS = {"ko": (2, 3), "ar": (4, 5), "hi": (3, 5)}  # letters that are kept of longer words
_LATIN_STEMS = (4, 6)
_PREFIXES = re.compile(r"(?:[وف]?(?:ال|بال|لل|كال)|[وفبل])(?=...)")  # of an Arabic word
_MAX_DIGITS = 5  # that are told apart


class ContextWords:
    """The tokens of one text, and the features of the places in it.

    Attributes:
        tokens: The tokens in lower case; digits are 0, and each name is MASK.
    """

    def __init__(self, text: str, names: Sequence[tuple[int, int]], language: str) -> None:
        """Splits the text.

        Args:
            text: The text.
            names: Start and end of each name, in order, without overlap.
            language: The language of the text (ISO 639-1).
        """
        lower, pattern = lower_text(text), _CHARACTER if language in _CHARACTERS else _TOKEN
        self._language, self.tokens, self._starts, done = language, [_LINE], [-1], 0
        for start, end in (*names, (len(text), len(text))):
            for match in pattern.finditer(lower, done, start):
                token = _LINE if match[0] == "\n" else match[0]
                self.tokens.append("0" * min(len(token), _MAX_DIGITS) if token.isdigit() else token)
                self._starts.append(match.start())
            self.tokens.append(MASK if end > start else _LINE)
            self._starts.append(start)
            done = end
        self._sums: list[float] | None = None

    def _bounds(self, start: int, end: int) -> tuple[int, int]:
        """Returns the indices of the first token of a place, and of the first token behind it."""
        return bisect_left(self._starts, start), max(bisect_left(self._starts, end), bisect_left(self._starts, start) + 1)

    def _of_token(self, i: int) -> Iterator[str]:
        """Yields the features of token i that count without its side."""
        yield from (f"w:{form}" for form in _forms(self.tokens[i], self._language))
        yield f"2:{self.tokens[i - 1]}_{self.tokens[i]}"
        if self._language in _CHARACTERS:
            yield f"3:{self.tokens[i - 2]}{self.tokens[i - 1]}{self.tokens[i]}"

    def _beside(self, first: int, last: int) -> Iterator[str]:
        """Yields the features of the tokens beside a place, with their sides."""
        tokens, before, after = self.tokens, max(1, first - _BESIDE), min(len(self.tokens) - 1, last + _BESIDE)
        for side, places in (("b", range(before, first)), ("a", range(last, after))):
            for i in places:
                yield from (f"{side}:{form}" for form in _forms(tokens[i], self._language))
                if self._language in _CHARACTERS and i > places.start:
                    yield f"{side}:{tokens[i - 1]}{tokens[i]}"
        yield from (f"B:{tokens[first - 1]}", f"A:{tokens[min(last, len(tokens) - 1)]}")
        yield f"1:{'_'.join(tokens[max(0, first - 2) : first])}"
        yield f"9:{'_'.join(tokens[last : last + 2])}"

    def features(self, start: int, end: int) -> list[str]:
        """Returns the features of a place. One that comes twice counts twice."""
        first, last = self._bounds(start, end)
        near = (*range(max(1, first - _REACH), first), *range(last + 1, min(len(self.tokens), last + _REACH)))
        return [*(feature for i in near for feature in self._of_token(i)), *self._beside(first, last)]

    def score(self, start: int, end: int, weights: Mapping[str, float]) -> float:
        """Returns the sum of the weights of the features of a place. All calls must give the same weights."""
        if self._sums is None:
            each = (sum(weights.get(feature, 0.0) for feature in self._of_token(i)) for i in range(len(self.tokens)))
            self._sums = [0.0, *accumulate(each)]
        first, last = self._bounds(start, end)
        total = self._sums[first] - self._sums[max(1, first - _REACH)]
        total += self._sums[max(last + 1, min(len(self.tokens), last + _REACH))] - self._sums[last + 1]
        return total + sum(weights.get(feature, 0.0) for feature in self._beside(first, last))


@cache
def load_weights(language: str, use: str) -> dict[str, dict[str, float]]:
    """Returns the weights of a language for a use: table -> feature -> weight. A language without a file has those of all.

    Args:
        language: The language (ISO 639-1).
        use: "private_names" or "private_values", the name of a file in the folder of the language.
    """
    path = f"languages/{language}/weights/{use}"
    tables = read_data_file(path if (PACKAGE / f"{path}.toml").is_file() else f"languages/any/weights/{use}")
    return {
        table: {feature: float(weight) for weight, features in rows.items() for feature in features.split()}
        for table, rows in tables.items()
    }


@lru_cache(maxsize=100_000)
def _forms(token: str, language: str) -> tuple[str, ...]:
    """Returns a token, its beginnings, and an Arabic one without its prefix."""
    if not token[0].isalpha() or language in _CHARACTERS:
        return (token,)
    prefix = _PREFIXES.match(token) if language == "ar" else None
    whole = token[prefix.end() :] if prefix else token
    stems = (f"{whole[:size]}*" for size in _STEMS.get(language, _LATIN_STEMS) if len(whole) > size)
    return (token, *((whole,) if prefix else ()), *stems)
