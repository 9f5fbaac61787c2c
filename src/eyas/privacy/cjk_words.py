"""Loads the words with which names_cjk.py finds Chinese, Japanese and Korean names, and describes their scripts.

All words are tables of the language folders; languages/README.md explains them. Faker adds names and ordinary words.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from eyas.privacy.word_lists import read_by_language, read_entries, read_faker_words, read_names_of

CJK_LANGUAGES = ("zh", "ja", "ko")
NEUTRAL, FORMS = "han", ("simplified", "traditional")  # scripts of Chinese characters
LETTER = r"々〆ヵヶぁ-ゖァ-ヺー㐀-䶿一-鿿가-힣"
HAN, KATAKANA = re.compile(r"[々〆ヵヶ㐀-䶿一-鿿]"), re.compile(r"[ァ-ヺー]")
_IS_LETTER = re.compile(rf"[{LETTER}]")
_ORDINARY = (
    "private_relations", "private_contacts", "private_matters", "private_hints", "public_matters", "public_hints",
    "invented_frames", "words_that_look_like_names", "towns",
)  # fmt: skip
_RULES = {"private_relations": "relation", "labels_before_names": "label", "introductions_of_names": "introduction"}


class WordSet:
    """A set of words that finds the longest of them at a position of a text."""

    def __init__(self, words: Iterable[str]) -> None:
        """Indexes the words by their first and by their last character."""
        self.words = frozenset(words)
        self._from, self._until = dict[str, list[int]](), dict[str, list[int]]()
        for index, place in ((self._from, 0), (self._until, -1)):
            for char, size in sorted({(word[place], len(word)) for word in self.words}, reverse=True):
                index.setdefault(char, []).append(size)
        self.starts = re.compile(f"[{re.escape(''.join(sorted(self._from)))}]" if self._from else r"(?!)")

    def __contains__(self, word: str) -> bool:
        """Returns True if the set holds the word."""
        return word in self.words

    def size_at(self, text: str, start: int) -> int:
        """Returns the length of the longest word that starts at a position; 0 if there is none."""
        sizes = self._from.get(text[start : start + 1], ())
        left = len(text) - start
        return next((size for size in sizes if size <= left and text[start : start + size] in self.words), 0)

    def word_before(self, text: str, end: int) -> str:
        """Returns the longest word that ends at a position; "" if there is none."""
        sizes = self._until.get(text[end - 1 : end], ()) if end > 0 else ()
        return next(
            (text[end - size : end] for size in sizes if size <= end and text[end - size : end] in self.words), ""
        )


class CjkWords:
    """The words of one language.

    Attributes:
        surnames: All surnames; those in the table doubtful_surnames or unlikely_surnames are other words as well.
        given: Given names of two characters or more.
        words: Ordinary words of two characters or more.
        known: Names of well-known people.
        leads: Words before a name. `rules` has the rule that each one stands for.
        starts: Matches the first character of any name.
    """

    def __init__(self, language: str) -> None:
        """Reads the tables of a language."""
        self.language = language
        self.old_forms = {ord(pair[0]): pair[1] for pair in self.read("traditional_characters")}
        listed = {part: {name.translate(self.old_forms) for name in read_names_of(part, language)}
                  for part in ("last", "first")}  # fmt: skip
        self.never = self.characters("characters_not_in_names")
        self.surnames = WordSet((self.read("surnames") | listed["last"]) - self.never)
        self.given = WordSet(name for name in self.read("given_names") | listed["first"] if len(name) > 1)
        ordinary = read_faker_words(language).union(*map(self.read, _ORDINARY))
        compound = {name for name in self.surnames.words if len(name) > 1}
        self.words = WordSet(word for word in ordinary - compound if len(word) > 1)
        self.known = WordSet(name for name in self.read("public_people") - self.words.words if len(name) > 1)
        self.rules = {lead: rule for table, rule in _RULES.items() for lead in self.read(table)}
        self.leads = WordSet(self.rules)
        self.starts = WordSet(self.surnames.words | self.given.words | self.known.words).starts

    def read(self, table: str) -> frozenset[str]:
        """Returns the entries of a table; an empty set if the language lacks it."""
        return read_entries(table, self.language)

    def characters(self, table: str) -> frozenset[str]:
        """Returns the characters in the entries of a table."""
        return _characters(table, self.language)

    def __getitem__(self, table: str) -> WordSet:
        """Returns a table as a set of words."""
        return _word_set(table, self.language)


@cache
def _word_set(table: str, language: str) -> WordSet:
    return WordSet(read_entries(table, language))


@cache
def _characters(table: str, language: str) -> frozenset[str]:
    return frozenset("".join(read_entries(table, language)))


@cache
def load_cjk_words(language: str) -> CjkWords:
    """Returns the words of one of CJK_LANGUAGES. A process loads them once."""
    return CjkWords(language)


def normalize_cjk(text: str, language: str) -> str:
    """Returns the text with traditional Chinese characters replaced by simplified ones. All positions stay the same."""
    return text.translate(load_cjk_words(language).old_forms) if language == "zh" else text


def is_cjk(text: str) -> bool:
    """Returns True if a text begins with a letter of Chinese, Japanese or Korean."""
    return _IS_LETTER.match(text) is not None


@cache
def _characters_of_forms() -> Mapping[str, frozenset[str]]:
    """Returns the Chinese characters that belong to one form only, by form."""
    pairs = [pair for pair in read_by_language("traditional_characters")["zh"] if pair[0] != pair[1]]
    return {FORMS[0]: frozenset(pair[1] for pair in pairs), FORMS[1]: frozenset(pair[0] for pair in pairs)}


def find_script(name: str) -> str:
    """Returns the script of a name. Chinese characters are NEUTRAL unless they belong to one of FORMS only."""
    if not all(map(HAN.match, name)):
        return "hangul" if "가" <= name[0] <= "힣" else "katakana" if KATAKANA.match(name) else "hiragana"
    forms = _characters_of_forms()
    return next((form for form in reversed(FORMS) if not forms[form].isdisjoint(name)), NEUTRAL)


def list_cjk_names(role: str, language: str) -> list[str]:
    """Returns names from which surrogates are picked: those of Faker and of the language's folder.

    Args:
        role: "first" or "last".
        language: One of CJK_LANGUAGES.
    """
    words = load_cjk_words(language)
    unusual = words["doubtful_surnames"].words | words["unlikely_surnames"].words
    names = words.given.words if role == "first" else words.surnames.words - unusual
    return sorted({*names, *read_names_of(role, language)})


@cache
def _all_names() -> tuple[frozenset[str], frozenset[str]]:
    """Returns the surnames and the given names of the three languages. Chinese ones have both forms of a character."""
    lists = [load_cjk_words(language) for language in CJK_LANGUAGES]
    old = {plain: chr(other) for other, plain in lists[0].old_forms.items()}
    surnames, given = set[str](), set[str]()
    for one in lists:
        for target, names in ((surnames, one.surnames.words), (given, one.given.words)):
            target.update(names, ("".join(old.get(char, char) for char in name) for name in names))
    return frozenset(surnames), frozenset(given)


@lru_cache(maxsize=10_000)
def surname_size(word: str) -> int:
    """Returns the number of characters of the surname at the start of a name; 0 for a given name alone."""
    surnames, given = _all_names()
    if word in surnames:
        return len(word)
    if word in given:
        return 0
    return next((size for size in range(min(4, len(word) - 1), 0, -1) if word[:size] in surnames), 0)
