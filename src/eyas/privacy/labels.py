"""Reads labels (column headings, keys of fields), and tests whether a value fits its label.

A label is read word by word. "customer_name", "Nom du client" and "IMIĘ I NAZWISKO" mean a person's name. "city name"
means a place. "customer id" and "file name" mean nothing personal. A label with one unknown word is unknown.
"""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import NamedTuple

from eyas.privacy.case_insensitive import strip_accents
from eyas.privacy.patterns import load_patterns
from eyas.privacy.word_lists import PARTICLES, load_lexicon, read_data_file, read_words
from eyas.privacy.words import TITLES, is_ordinary_word, is_stop_word, split_words

MAX_LENGTH = 48  # characters of a label
_MAX_WORDS = 6
_MAX_NAME = 60  # characters of a name
NON_VALUES = read_words("non_values")
_COMPANY_WORDS = read_words("company_words")
# Kinds in the order in which a word of a label decides: "email address" is EMAIL, "customer city" LOCATION.
_KINDS = ("EMAIL", "PHONE", "ACCOUNT", "GOVERNMENT_ID", "ADDRESS", "LOCATION")
THING, PERSONAL = "THING", "PERSONAL"
_GROUPS: dict[str, list[str]] = read_data_file("data/label_kinds")["words_of_labels"]
_SHAPES = load_patterns("values")


class Trust(IntEnum):
    """The certainty that the values under a label are names of people."""

    NAME = 0  # "name": things have names, too
    ROLE = 1  # "customer": mostly people, but sometimes companies or programs
    SURE = 2  # "surname", "customer name": people only


class Label(NamedTuple):
    """The meaning of a label.

    Attributes:
        kind: A kind of personal data, for example "EMAIL"; or PERSONAL for other data of people (an age), or THING for
            data of things (a price).
        trust: For the kind "PERSON": the certainty that the values are names of people.
    """

    kind: str
    trust: Trust = Trust.SURE

    @property
    def is_entity(self) -> bool:
        """True if the kind is a kind of personal data, so that values under this label are detected."""
        return self.kind not in (THING, PERSONAL)


@lru_cache(maxsize=10_000)
def parse_label(text: str) -> Label | None:
    """Returns the meaning of a label: "e-mail" -> kind "EMAIL". Returns None if a word of the label is unknown."""
    if len(text) > MAX_LENGTH:
        return None
    spaced = _SHAPES["camel_edge"].sub(" ", text).casefold().replace("e-mail", "email").replace("e_mail", "email")
    tokens = _SHAPES["word_of_label"].findall(strip_accents(spaced))
    if not tokens or len(tokens) > _MAX_WORDS:
        return None
    words = _words()
    if len(tokens) > 1 and " ".join(tokens) in words:
        return Label(words[" ".join(tokens)])
    if not all(token in words for token in tokens):
        return None
    groups = {words[token] for token in tokens}
    for kind in (THING, *_KINDS, PERSONAL):
        if kind in groups:
            return Label(kind)
    if "number" in groups:
        return None  # a customer's number
    named = "name" in groups
    if "sure" in groups or (named and ("role" in groups or "part" in groups)):
        return Label("PERSON", Trust.SURE)
    if "role" in groups:
        return Label("PERSON", Trust.ROLE)
    return Label("PERSON", Trust.NAME) if named or "part" in groups else None


@cache
def _words() -> Mapping[str, str]:
    """Returns the meaning of each word of labels, and of whole phrases: {"email": "EMAIL", "city": "LOCATION", ...}.

    A word that is in two lists gets the meaning of the first list.
    """
    kinds = ("GOVERNMENT_ID", "PERSON", "PHONE", PERSONAL)
    found = {phrase: kind for kind in kinds for phrase in read_words(f"{kind}_phrases")}
    for group, tables in _GROUPS.items():
        words = read_words(*tables)
        plurals = {f"{word}s" for word in words} if group == "role" else set[str]()  # of a list, an array
        for word in words | plurals:
            found.setdefault(strip_accents(word), group)
    return found


def is_name(value: str, language: str, sure: bool = False, any_case: bool = False) -> bool:
    """Returns True if the whole value may be a person's name. The name need not be in the lexicon.

    Args:
        value: The value, without blanks around it.
        language: The language of the text (ISO 639-1).
        sure: The label says that the value is a name. Then an ordinary word may be a name, too: "Young".
        any_case: The name may be in lower case.
    """
    if not 2 <= len(value) <= _MAX_NAME or not _SHAPES["name"].match(value) or _SHAPES["camel_case"].search(value):
        return False
    words, lexicon = split_words(value), load_lexicon()
    num_names = num_words = 0
    for i, lower in enumerate(words.lowers):
        is_capital, is_particle = words.is_capital(i), lower in PARTICLES
        listed = lower in lexicon.first_names or lower in lexicon.last_names
        is_word = is_ordinary_word(lower, lexicon, language)
        if lower in TITLES and len(words) > 1:
            num_words += is_capital
        elif is_particle and not is_capital:
            continue
        elif lower in NON_VALUES or lower in _COMPANY_WORDS or not (is_capital or any_case):
            return False
        elif is_particle or words.is_initial(i):
            continue
        elif (is_stop_word(lower, lexicon) and not listed) or (not is_capital and is_word):
            return False
        elif is_word and not (sure and listed):
            num_words += 1
        elif len(value) > 3 or not value.isupper() or sure:
            num_names += 1
    return num_names > 0 or (sure and num_words > 0) or (num_words >= 2 and words.lowers[0] in lexicon.first_names)


def has_listed_name(value: str) -> bool:
    """Returns True if a word of the value is a listed name, and is neither an ordinary word nor a town."""
    lexicon = load_lexicon()
    return any(
        lower in lexicon.sure_names
        or (lower in lexicon.last_names and lower not in lexicon.common and lower not in lexicon.cities)
        for lower in split_words(value).lowers
        if len(lower) > 2
    )


def fits(label: Label, value: str) -> bool:
    """Returns True if the value looks like the kind of its label, for example like a phone number."""
    if label.kind == "LOCATION":
        return _is_place(value)
    shape = _SHAPES.get(label.kind)
    return shape is not None and bool(shape.match(value))


def _is_place(value: str) -> bool:
    if not 3 <= len(value) <= _MAX_NAME or not _SHAPES["LOCATION"].match(value):
        return False
    if value[0].islower():
        return value in load_lexicon().cities or value in load_lexicon().towns
    lowers = split_words(value).lowers
    return bool(lowers) and not all(lower in load_lexicon().stop or lower in NON_VALUES for lower in lowers)
