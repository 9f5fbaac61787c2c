"""Splits a text into words, tells ordinary words from others, and finds phrases: "rent", "my account", "vermiet*"."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from eyas.privacy.case_insensitive import fold_word, lower_text, strip_accents
from eyas.privacy.cjk_words import CJK_LANGUAGES, WordSet, normalize_cjk
from eyas.privacy.patterns import load_patterns
from eyas.privacy.word_lists import UNICASED, Lexicon, read_entries, read_words

# Signs inside words that are no letters: Arabic vowels; Devanagari vowels, virama, nukta; joiners.
_SIGNS = "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963\u200c\u200d"
LETTERS = rf"[^\W\d_]+(?:[{_SIGNS}]+[^\W\d_]*)*"
WORD = rf"{LETTERS}(?:['’]{LETTERS})*"
"""Letters, with apostrophes inside ("O'Brien", "m'appelle"). Digits and underscores end a word."""
_WORD = re.compile(WORD)
# Articles and prepositions that French, Italian and Portuguese join to a name: "d'Anna", "dell'Anna", "qu'Anna".
_ELISION = re.compile(r"(?:[dlnsjcmt]|qu|dell|all|dall|nell|sull|un|jusqu|lorsqu|puisqu)'(?=[^\W\d_])")
_PREFIXES = re.compile(r"([وف]?)(لل|[بلك]?(?:ال)?)")  # of an Arabic word
_SENTENCE_END = '.!?:;\n"“”„«»()[]{}•*-–—>|/\t#=,'

TERMS = read_words("terms")
NAMED_THINGS = TERMS | read_words("brands")
TITLES = read_words("titles", "titles_of_fields")  # in fields and letters

_PATTERNS = load_patterns("word_shapes")
_FORMS = ("s", "es", "ed", "d", "ing", "ly", "er", "n")
_QUOTES = "\"'“”„‚‘’«»`"
_WITH_PARTICLES = ("ko",)  # languages whose words have particles as endings: each entry is the beginning of a word
_MIN_STEM, _MAX_STEM = 3, 30  # letters before a star
_MAX_CACHED_WORDS = 20_000  # whose tables each matcher remembers
_MIN_ACCENTED = 4  # letters of a word that also matches without its accents


@dataclass(frozen=True)
class Words:
    """The words of a text. Methods take the index i of a word.

    Attributes:
        text: The whole text.
        starts: The position of the first character of each word.
        ends: The position after the last character of each word: word i is text[starts[i]:ends[i]].
        written: The words as the text writes them.
        lowers: The words in lower case.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    written: tuple[str, ...]
    lowers: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.written)

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """The text between each word and the next word; for the last word, the text after it."""
        return tuple(map(self.text.__getitem__, map(slice, self.ends, (*self.starts[1:], len(self.text)))))

    def is_capital(self, i: int) -> bool:
        """Returns True if word i begins with a capital letter."""
        return self.written[i][0].isupper()

    def is_initial(self, i: int) -> bool:
        """Returns True if word i is one capital letter, such as the first two words of "J. R. Smith"."""
        return len(self.written[i]) == 1 and self.written[i].isupper()

    def starts_sentence(self, i: int) -> bool:
        """Returns True if any word is capitalized at this position: at the start, after a full stop, a bullet, a quote.

        There, a capital letter does not show that the word is a name.
        """
        return i == 0 or ends_sentence(self.gaps[i - 1])

    def is_code(self, i: int) -> bool:
        """Returns True if word i is part of program code: an identifier, a call, a path or an attribute."""
        before = self.text[max(0, self.starts[i] - 2) : self.starts[i]]
        after = self.text[self.ends[i] : self.ends[i] + 2]
        if before[-1:] == " " == after[:1]:
            return False  # most words
        if after[:1] in ("_", "(", "<") or after == "::" or after[:1].isdigit():
            return True
        if after[:1] == "." and after[1:].isalpha() and after[1:].islower():
            return True  # "Anna.name", but not the end of a sentence
        return before[-1:] in ("_", "$", "@", "#", "\\") or (before[-1:] == "." and before[:1].isalnum())

    @cached_property
    def is_technical(self) -> bool:
        """True if a word of the text belongs to mathematics, statistics or programming: "theorem", "algorithm"."""
        return bool(_PATTERNS["technical"].search(self.text))

    def is_quoted(self, i: int) -> bool:
        """Returns True if word i is quoted in a text about language: "Rose" in `Use the word "Rose" in a sentence`.

        Such a word is no name.
        """
        text, start, end = self.text, self.starts[i], self.ends[i]
        quoted = 0 < start <= end < len(text) and text[start - 1] in _QUOTES and text[end] in _QUOTES
        return quoted and bool(_PATTERNS["about_words"].search(text))


@lru_cache(maxsize=10_000)
def ends_sentence(gap: str) -> bool:
    """Returns True if a sentence may end in the text between two words."""
    before = gap.strip(" \u00a0")
    # An abbreviation's full stop ("Mr. May", "J. May") counts as an end, a comma or a hyphen alone does not.
    return bool(before) and before[-1] in _SENTENCE_END and before not in (",", "-")


@lru_cache(maxsize=4)  # several detectors walk over one text, one after another
def split_words(text: str) -> Words:
    """Returns the words of the text. "Anna's" and "d'Anna" both become the word "Anna"."""
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches]
    starts, ends = [match.start() for match in matches], [match.end() for match in matches]
    for i, word in enumerate(words) if "'" in text or "’" in text else ():
        if "'" in word or "’" in word:
            plain = word.replace("’", "'")
            if (elision := _ELISION.match(plain)) and plain[elision.end()].isupper():
                starts[i] += elision.end()
                plain = plain[elision.end() :]
            # "It's" and "name's" stay whole: phrases hold them.
            if plain.endswith(("'s", "'S")) and plain[0].isupper() and plain.lower() not in ("it's", "let's", "here's"):
                ends[i] -= 2
                plain = plain[:-2]
            words[i] = plain
    return Words(text, tuple(starts), tuple(ends), tuple(words), tuple(map(str.casefold, words)))


@lru_cache(maxsize=100_000)
def cut_prefixes(form: str) -> tuple[str, ...]:
    """Returns an Arabic word, and the word without its prefixes: "wa", "fa", "bi", "li", "ka", "al".

    Args:
        form: The word, in the spelling of `fold_word`.
    """
    first, second = _PREFIXES.match(form).groups()  # type: ignore[union-attr]  # matches any text
    cuts = {len(first), len(first) + (second[:1] in ("ب", "ل", "ك")), len(first) + len(second)}
    return (form, *(form[cut:] for cut in sorted(cuts - {0}) if len(form) - cut > 2))


@lru_cache(maxsize=20_000)
def ends_as_word(lower: str, german: bool) -> bool:
    """Returns True if a word has an ending that hardly ends a name. german: endings of German nouns count, too."""
    return bool(_PATTERNS["word_ending"].match(lower)) or (german and bool(_PATTERNS["german_noun"].match(lower)))


def is_stop_word(lower: str, lexicon: Lexicon) -> bool:
    """Returns True if a word is never part of a name: a stop word or its contraction ("you'll")."""
    if lower in lexicon.stop:
        return True
    stem, apostrophe, ending = lower.partition("'")
    is_contraction = apostrophe and ending in ("ll", "ve", "re", "d", "m", "t", "s")
    return bool(is_contraction) and (stem in lexicon.stop or stem.endswith("n"))


def is_ordinary_word(lower: str, lexicon: Lexicon, language: str) -> bool:
    """Returns True if a word is an ordinary word, a form of one ("customers", "selected"), or ends like one."""
    if lower in lexicon.common or is_stop_word(lower, lexicon):
        return True
    if lower in lexicon.last_names or lower in lexicon.first_names:
        return False
    if lower.endswith(_FORMS) and not lower.endswith("ss"):
        stems = (lower.removesuffix(end) for end in _FORMS if lower.endswith(end))
        if any(len(stem) > 3 and stem in lexicon.common for stem in stems):
            return True
    return ends_as_word(lower, language == "de")


# --- phrases ---------------------------------------------------------------------------------------------------------


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
            for start, end in self._entries.find_all(lower, at_starts=self._language in _WITH_PARTICLES):
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
