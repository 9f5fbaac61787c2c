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
from functools import cache, lru_cache, partial
from itertools import accumulate, pairwise

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.word_lists import PACKAGE, read_data_file
from eyas.privacy.words import LETTERS

MASK = "|"  # stands for a name
_LINE = "¶"  # stands for a line break, and for both ends of the text
_BESIDE = 5  # tokens on each side whose side counts
REACH = 40  # tokens on each side
CHARACTERS = frozenset(("zh", "ja"))  # languages in which each character is a token
_TOKEN = re.compile(rf"{LETTERS}|\d+|[^\w\s]|_|\n")
_CHARACTER = re.compile(r"[A-Za-z]+|\d+|\S|\n")
_STEMS = {"ko": (2, 3), "ar": (4, 5), "hi": (3, 5)}  # letters that are kept of longer words
_LATIN_STEMS = (4, 6)
_PREFIXES = re.compile(r"(?:[وف]?(?:ال|بال|لل|كال)|[وفبل])(?=...)")  # of an Arabic word
_MAX_DIGITS = 5  # that are told apart


class FeatureWeights(dict[str, float]):
    """Feature -> weight, with the sums of the weights of single tokens, which are computed once."""

    def __init__(self, weights: Mapping[str, float], language: str) -> None:
        """Copies the weights, and lists the first tokens of the pairs that have one."""
        super().__init__(weights)
        self._language = language
        pairs = (feature[2:] for feature in weights if feature.startswith("2:"))
        self._firsts = {pair[:k] for pair in pairs for k in range(1, len(pair)) if pair[k] == "_"}
        triples = (feature[2:] for feature in weights if feature.startswith("3:"))
        self._triples = {triple[:k] for triple in triples for k in range(1, len(triple))}
        self.of_word = lru_cache(100_000)(self._of_word)
        self._anywhere = lru_cache(100_000)(partial(self._of_word, "w"))

    def _of_word(self, side: str, token: str) -> float:
        """Returns the sum of the weights of one token. side: "w" for anywhere, "b" for before, "a" for after."""
        return sum(self.get(f"{side}:{form}", 0.0) for form in forms(token, self._language))

    def of_tokens(self, tokens: Sequence[str]) -> Iterator[float]:
        """Yields the sum of the weights of each token, of its pair and of its triple with the tokens before it."""
        with_triples, second, firsts, triples = self._language in CHARACTERS, tokens[-2], self._firsts, self._triples
        for first, token, total in zip((tokens[-1], *tokens), tokens, map(self._anywhere, tokens), strict=False):
            if first in firsts:
                total += self.get(f"2:{first}_{token}", 0.0)
            if with_triples and second + first in triples:
                total += self.get(f"3:{second}{first}{token}", 0.0)
            second = first
            yield total


class ContextWords:
    """The tokens of one text, and the scores of the places in it.

    Attributes:
        language: The language of the text (ISO 639-1).
        tokens: The tokens in lower case; digits are 0, and each name is MASK.
    """

    def __init__(self, text: str, names: Sequence[tuple[int, int]], language: str) -> None:
        """Splits the text.

        Args:
            text: The text.
            names: Start and end of each name, in order, without overlap.
            language: The language of the text (ISO 639-1).
        """
        lower, pattern = lower_text(text), _CHARACTER if language in CHARACTERS else _TOKEN
        self.language, self.tokens, self._starts, done = language, [_LINE], [-1], 0
        for start, end in (*names, (len(text), len(text))):
            matches = list(pattern.finditer(lower, done, start))
            self.tokens += [_to_token(match[0]) for match in matches]
            self._starts += [match.start() for match in matches]
            self.tokens.append(MASK if end > start else _LINE)
            self._starts.append(start)
            done = end
        self._sums: dict[int, list[float]] = {}  # identity of weights -> sums of the tokens before each token
        self._beside_sums: dict[object, float] = {}

    def bounds(self, start: int, end: int) -> tuple[int, int]:
        """Returns the indices of the first token of a place, and of the first token behind it."""
        first = bisect_left(self._starts, start)
        return first, max(bisect_left(self._starts, end, first), first + 1)

    def sides(self, first: int, last: int) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
        """Returns the tokens before and behind a place whose side counts."""
        before, after = max(1, first - _BESIDE), min(len(self.tokens) - 1, last + _BESIDE)
        return ("b", self.tokens[before:first]), ("a", self.tokens[last:after])

    def joined_beside(self, first: int, last: int) -> Iterator[str]:
        """Yields the features of several tokens beside a place, and of the tokens right beside it."""
        tokens = self.tokens
        for side, beside in self.sides(first, last) if self.language in CHARACTERS else ():
            yield from (f"{side}:{a}{b}" for a, b in pairwise(beside))
        yield from (f"B:{tokens[first - 1]}", f"A:{tokens[min(last, len(tokens) - 1)]}")
        yield f"1:{'_'.join(tokens[max(0, first - 2) : first])}"
        yield f"9:{'_'.join(tokens[last : last + 2])}"

    def score(self, start: int, end: int, weights: FeatureWeights) -> float:
        """Returns the sum of the weights of the features of a place. benchmarks/context_features.py lists them."""
        sums = self._sums.get(id(weights))
        if sums is None:
            sums = self._sums[id(weights)] = [0.0, *accumulate(weights.of_tokens(self.tokens))]
        first, last = self.bounds(start, end)
        total = sums[first] - sums[max(1, first - REACH)]
        total += sums[max(last + 1, min(len(self.tokens), last + REACH))] - sums[last + 1]
        sides = self.sides(first, last)
        key = (id(weights), *(tuple(tokens) for _, tokens in sides))  # the tokens that decide the rest
        if (beside := self._beside_sums.get(key)) is None:
            beside = sum(weights.of_word(side, token) for side, tokens in sides for token in tokens)
            beside += sum(weights.get(feature, 0.0) for feature in self.joined_beside(first, last))
            self._beside_sums[key] = beside
        return total + beside


@lru_cache(maxsize=4)  # for values and for names
def split_context(text: str, names: tuple[tuple[int, int], ...], language: str) -> ContextWords:
    """Returns the ContextWords of a text; its arguments are those of ContextWords."""
    return ContextWords(text, names, language)


@cache
def load_weights(language: str, use: str) -> dict[str, FeatureWeights]:
    """Returns the weights of a language for a use: table -> feature -> weight. Without a file, it has those of all.

    Args:
        language: The language (ISO 639-1).
        use: "private_names" or "private_values", the name of a file in the folder of the language.
    """
    path = f"languages/{language}/weights/{use}"
    found = read_weights(path if (PACKAGE / f"{path}.toml").is_file() else f"languages/any/weights/{use}")
    return {table: FeatureWeights(weights, language) for table, weights in found.items()}


def read_weights(path: str) -> dict[str, dict[str, float]]:
    """Returns the weights in a file of this package whose rows hold a weight and its features: table -> weights."""
    return {
        table: {feature: float(weight) for weight, features in rows.items() for feature in features.split()}
        for table, rows in read_data_file(path).items()
    }


@lru_cache(maxsize=100_000)
def _to_token(written: str) -> str:
    return _LINE if written == "\n" else "0" * min(len(written), _MAX_DIGITS) if written.isdigit() else written


@lru_cache(maxsize=100_000)
def forms(token: str, language: str) -> tuple[str, ...]:
    """Returns a token, its beginnings, and an Arabic one without its prefix."""
    if not token[0].isalpha() or language in CHARACTERS:
        return (token,)
    prefix = _PREFIXES.match(token) if language == "ar" else None
    whole = token[prefix.end() :] if prefix else token
    stems = (f"{whole[:size]}*" for size in _STEMS.get(language, _LATIN_STEMS) if len(whole) > size)
    return (token, *((whole,) if prefix else ()), *stems)
