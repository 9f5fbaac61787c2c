"""Finds street addresses, post boxes, and postcodes with their town.

    example                     parts                                 languages
    12 Elm Street, Apt 4        number, name, kind of street          en
    12 bis, rue de la Paix      number, kind of street, name          fr
    Lindenstraße 12a            name and kind in one, number          de nl sv
    Calle Mayor 12, via Roma 3  kind of street, name, number          es it pt pl (fr, nl)
    Postfach 12 34              a post box                            all
    1017 AB Amsterdam           a postcode with its town              all
    Address: ...                a field whose value has a number      all

An address needs a number. Only after "lives in" a street without a number is found. The patterns are in
data/addresses.toml; the formats of addresses in other scripts are in data/identifiers.toml.
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.dictionary import WITH_COMPOUNDS
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import load_lexicon, read_data_file, read_words
from eyas.privacy.words import NAMED_THINGS

_PATTERNS = load_patterns("addresses")
_COMPOUNDS_EVERYWHERE = tuple(read_words("streets_in_one_word_everywhere"))
_COMPOUNDS = (*_COMPOUNDS_EVERYWHERE, *read_words("streets_in_one_word", "streets_in_one_word_doubtful"))
_SURE = ("french", "italian", "postcode", "american_town", "flat", "numbered_flat")
_KINDS = read_data_file("data/addresses")["kinds_of_streets"]
_REACH = 12  # characters before a number in which a word such as "chapter" stands


def find_addresses(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of addresses, each with the flat, the postcode and the town after it.

    Every repeat in its patterns is bounded, so it takes linear time.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    for match in _PATTERNS.find(text, "without_number"):
        yield Span(*match.span(1), "ADDRESS", 0.6)
    if not _PATTERNS["digit"].search(text) and "s/n" not in text.lower():
        return
    for match in _find_streets(text, language):
        yield _with_town(text, *match.span(), 0.8)
    for match in _PATTERNS.find(text, "street_over_postcode", "after_lives", "house_of_someone"):
        yield _with_town(text, *match.span(1), 0.7)
    for match in _PATTERNS.find(text, "english_in_lower_case"):
        words = match[1].lower().replace(",", "").split()[1:-1]
        if not any(_PATTERNS["no_street_name"].fullmatch(word) or word in load_lexicon().stop for word in words):
            yield _with_town(text, *match.span(1), 0.6)


def _find_streets(text: str, language: str) -> Iterator[re.Match[str]]:
    """Yields matches that are a street with a number, a post box, or a postcode with its town."""
    for match in _PATTERNS.find(text, "english"):
        if not _PATTERNS["counted"].search(text[max(0, match.start() - _REACH) : match.start()]):
            yield match
    for match in _PATTERNS.find(text, "prefixed"):
        if _is_street(text, match, language):
            yield match
    yield from _find_compounds(text, language)
    yield from _PATTERNS.find(text, *_SURE, *(["polish"] if language == "pl" else ()))
    for match in _PATTERNS.find(text, "post_box"):
        if not match[0].lower().startswith(("box", "bp", "b.p")) or language in _KINDS["languages_of_boxes"]:
            yield match


def _find_compounds(text: str, language: str) -> Iterator[re.Match[str]]:
    """Yields matches of streets whose name and kind are one word, with a number: "Lindenstraße 12a"."""
    lower, in_language = lower_text(text), language in WITH_COMPOUNDS
    if not in_language and not any(kind in lower for kind in _COMPOUNDS_EVERYWHERE):
        return
    # A match has a number after a kind of street, fewer than 200 characters before it and fewer than 100 after it.
    places = [at.start() for at in _PATTERNS.find(text, "number_behind") if lower.endswith(_COMPOUNDS, 0, at.start())]
    for match in _PATTERNS["compound"].finditer(text, max(0, places[0] - 200), places[-1] + 100) if places else ():
        if _PATTERNS["sure_compound"].search(match[0]) or _PATTERNS["town_behind"].match(text, match.end()):
            yield match


def find_postcode_towns(text: str, cities: frozenset[str]) -> Iterator[Span]:
    """Yields the spans of postcodes with a listed town: "10115 Berlin". cities: the towns, in lower case."""
    for match in _PATTERNS.find(text, "postcode_and_town"):
        words = match[1].casefold().split(" ")
        if words[0] not in NAMED_THINGS and any(" ".join(words[:count]) in cities for count in (1, 2, 3)):
            yield Span(*match.span(), "ADDRESS", 0.8)


def _is_street(text: str, match: re.Match[str], language: str) -> bool:
    """Returns True if a match of "kind of street, name, number" is an address, and not "via Bluetooth 5"."""
    if match[0].startswith("al.") and text.endswith("et ", 0, match.start()):
        return False  # "et al. Nature 2019"
    street = match[0].lower()
    is_word = match[0][0].islower() and not street.startswith(tuple(_KINDS["sure"]))
    languages = next((some for word, some in _KINDS["doubtful"].items() if street.startswith(word)), None)
    languages = languages or (_KINDS["languages_of_lower_case"] if is_word else None)
    return not languages or language in languages or bool(_PATTERNS["town_behind"].match(text, match.end()))


def _with_town(text: str, start: int, end: int, score: float) -> Span:
    tail = _PATTERNS["tail"].match(text, end)
    return Span(start, tail.end() if tail else end, "ADDRESS", score)
