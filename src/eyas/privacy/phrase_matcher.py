"""Finds the words and phrases of the language folders in a text: "rent", "my account", "vermiet*"."""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from eyas.privacy.case_insensitive import fold_word, lower_text, strip_accents
from eyas.privacy.cjk_words import CJK_LANGUAGES, WordSet, normalize_cjk
from eyas.privacy.word_lists import UNICASED, read_entries
from eyas.privacy.words import Words, cut_prefixes

_PREFIXED = ("ko",)  # languages whose words have particles as endings: each entry is the beginning of a word
_MIN_STEM, _MAX_STEM = 3, 30  # letters before a star
_MAX_CACHED_WORDS = 20_000  # whose tables each matcher remembers
_MIN_ACCENTED = 4  # letters of a word that also matches without its accents


class PhraseMatcher:
    """A dictionary of phrases that finds all of them in one pass over the words of a text.

    An entry that ends with a star matches any ending: "vermiet*" matches "Vermieterin". A word with an apostrophe also
    counts as its two parts: "l'appartement" matches "appartement", and "j'habite" matches "j'".
    """

    def __init__(self, tables: Sequence[str], language: str) -> None:
        """Reads the tables of one language, and those of no single language.

        Args:
            tables: Names of tables in the language folders.
            language: The language (ISO 639-1).
        """
        self._language = language
        self._tables: dict[str, list[str]] = {}  # entry -> its tables
        for table in tables:
            for entry in (*read_entries(table, language), *read_entries(table, "any")):
                self._add(" ".join(re.split(r"[\s-]+", entry)), table)
        self._sizes: dict[str, list[int]] = {}  # first word of a phrase -> numbers of words of the phrases, falling
        for start, size in sorted({(entry.split()[0], entry.count(" ") + 1) for entry in self._tables}, reverse=True):
            if size > 1:
                self._sizes.setdefault(start, []).append(size)
        self._look_up = lru_cache(_MAX_CACHED_WORDS)(self._find_forms)
        self._entries = WordSet(self._tables)

    def _add(self, entry: str, table: str) -> None:
        if self._language in CJK_LANGUAGES:
            entry = entry.removesuffix("*")
        assert not entry.endswith("*") or len(entry) > _MIN_STEM, f"the stem {entry} is too short"
        is_stripped = self._language in UNICASED or len(entry) >= _MIN_ACCENTED
        for form in {entry, strip_accents(entry) if is_stripped else entry} - {""}:
            self._tables.setdefault(form, []).append(table)

    def find(self, words: Words) -> Iterator[tuple[int, int, str]]:
        """Yields the start and the end of each match in the text, and the table of its entry.

        Args:
            words: The words of the text.
        """
        if self._language in CJK_LANGUAGES:
            lower = lower_text(normalize_cjk(words.text, self._language))
            for start, end in self._entries.find_all(lower, at_starts=self._language in _PREFIXED):
                yield from ((start, end, table) for table in self._tables[lower[start:end]])
            return
        lowers = tuple(map(fold_word, words.lowers)) if self._language in UNICASED else words.lowers
        for i, found in enumerate(map(self._look_up, lowers)):
            for form, tables in found:  # of few words
                for size in self._sizes.get(form, ()):
                    phrase = " ".join((form, *lowers[i + 1 : i + size]))
                    for table in self._tables.get(phrase, ()) if i + size <= len(lowers) else ():
                        yield words.starts[i], words.ends[i + size - 1], table
                for table in tables:
                    yield words.starts[i], words.ends[i], table

    def _find_forms(self, lower: str) -> Sequence[tuple[str, Sequence[str]]]:
        """Returns the forms of a word that begin a phrase or are in a table, with their tables."""
        unicased = cut_prefixes(lower) if self._language == "ar" else (lower,)
        forms = unicased if self._language in UNICASED else _split_elision(lower)
        found = [(form, self._find_tables(form)) for form in forms]
        return [(form, tables) for form, tables in found if tables or form in self._sizes]

    def _find_tables(self, lower: str) -> Sequence[str]:
        """Returns the tables that have the word itself, or its longest stem."""
        sizes = range(min(len(lower), _MAX_STEM), _MIN_STEM - 1, -1)
        of_stem = next(filter(None, (self._tables.get(f"{lower[:size]}*") for size in sizes)), ())
        return tuple({*self._tables.get(lower, ()), *of_stem})


def _split_elision(lower: str) -> Sequence[str]:
    """Returns the forms of a word under which it is looked up: "l'appartement", "l'" and "appartement"."""
    head, mark, tail = lower.partition("'")
    return (lower, head + mark, tail) if tail else (lower,)


@cache
def load_matcher(tables: tuple[str, ...], language: str) -> PhraseMatcher:
    """Returns the matcher of these tables in one language. A process builds each matcher once."""
    return PhraseMatcher(tables, language)
