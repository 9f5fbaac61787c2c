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
from functools import cache

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern, letter_runs, lower_text
from eyas.privacy.dictionary import WITH_COMPOUNDS
from eyas.privacy.span import Span
from eyas.privacy.value_labels import find_labels
from eyas.privacy.word_lists import any_of, load_lexicon, read_data_file, read_words
from eyas.privacy.words import NAMED_THINGS

_COMPOUNDS_EVERYWHERE = tuple(read_words("streets_in_one_word_everywhere"))
_COMPOUND_TABLES = ("streets_in_one_word_everywhere", "streets_in_one_word", "streets_in_one_word_doubtful")
_COMPOUNDS = tuple(read_words(*_COMPOUND_TABLES))
_PLACE_OF_PART = re.compile(r"\{([A-Za-z_]+)\}")


@cache
def _text_of(name: str) -> str:
    """Returns an entry of data/addresses.toml, or the words of a table, with the parts inside filled in."""
    tables = {
        "Streets_behind_name": any_of("streets_behind_name").title(),
        "compounds": any_of(*_COMPOUND_TABLES),
        "sure_compounds": any_of(*_COMPOUND_TABLES[:2]),
        "streets_before_name": any_of("streets_before_name"),
    }
    entries = {key: text for table in read_data_file("data/addresses").values() for key, text in table.items()}
    text = tables.get(name) or "".join(entries[name])
    return _PLACE_OF_PART.sub(lambda part: _text_of(part[1]), text)


def _exact(name: str) -> re.Pattern[str]:
    return re.compile(_text_of(name))


def _any_case(name: str) -> CaseInsensitivePattern:
    return CaseInsensitivePattern(_text_of(name))


_EN, _EN_LOWER, _FR, _VIA = _exact("english"), _any_case("english_in_lower_case"), _exact("french"), _exact("italian")
_ONE_WORD, _SURE_COMPOUND, _PREFIXED = _exact("compound"), _any_case("sure_compound"), _exact("prefixed")
_BARE_STREET = PrefilteredPattern(_text_of("without_number"), _text_of("housed"))
_LIVES_AT = PrefilteredPattern(_text_of("after_lives"), _text_of("lives"))
_US_PLACE = PrefilteredPattern(_text_of("american_town"), r" [a-z]{2} \d{5}")
_NO_NUMBER, _POSTCODE, _FLAT = map(_exact, ("street_over_postcode", "postcode", "flat"))
_NUMBERED_FLAT, _HOME, _POLISH = map(_exact, ("numbered_flat", "house_of_someone", "polish"))
_TOWN, _TAIL, _TOWN_BEHIND = map(_exact, ("postcode_and_town", "tail", "town_behind"))
_BOX, _NO_VALUE, _COUNTED = map(_any_case, ("post_box", "no_value", "counted"))
_NUMBER_BEHIND = re.compile(r",? (?:nr\.? ?)?\d")
_NO_STREET_NAME = frozenset(
    "minutes minute hours hour miles mile feet foot meters piece people lane way east west".split()  # noqa: SIM905
)
# The first letters of each kind.
_PREFIX_WORDS = {re.split(r"[^\w]", kind)[0] for kind in read_words("streets_before_name")} | {"c", "r", "calz"}
_FIELD = re.compile(r"[\"'*\]]{0,3} ?(?:[:=]|(\n))\s{0,8}[\"'*<]{0,3}([^\n]{4,120})")  # from the label on
_THREE_LETTERS = re.compile(r"[^\W\d_]{3}")
_DIGIT, _CAPITAL = re.compile(r"\d"), re.compile(f"[{_text_of('UP')}]")


def find_addresses(text: str, language: str) -> Iterator[Span]:
    """Yields the spans of addresses, each with the flat, the postcode and the town after it.

    Every repeat in its patterns is bounded, so it takes linear time.

    Args:
        text: The text.
        language: The language of the text (ISO 639-1).
    """
    for match in _BARE_STREET.finditer(text):
        yield Span(*match.span(1), "ADDRESS", 0.6)
    if not _DIGIT.search(text) and "s/n" not in text.lower():
        return
    for match in _EN.finditer(text):
        if not _COUNTED.search(text[max(0, match.start() - 12) : match.start()]):
            yield _with_town(text, *match.span(), 0.8)
    if not letter_runs(text).isdisjoint(_PREFIX_WORDS):
        for match in _PREFIXED.finditer(text):
            if not _is_no_street(text, match, language):
                yield _with_town(text, *match.span(), 0.8)
    for match in _find_compounds(text, language):
        yield _with_town(text, *match.span(), 0.8)
    for pattern in (_NO_NUMBER, _LIVES_AT, _HOME):
        for match in pattern.finditer(text):
            yield _with_town(text, *match.span(1), 0.7)
    for match in _EN_LOWER.finditer(text):
        words = match[1].lower().replace(",", "").split()[1:-1]
        if not any(word in _NO_STREET_NAME or word in load_lexicon().stop for word in words):
            yield _with_town(text, *match.span(1), 0.6)
    for pattern in (_FR, _VIA, _BOX, _POSTCODE, _US_PLACE, _FLAT, _NUMBERED_FLAT, *(_POLISH,) * (language == "pl")):
        for match in pattern.finditer(text):
            if pattern is not _BOX or not match[0].lower().startswith(("box", "bp", "b.p")) or language in ("sv", "fr"):
                yield _with_town(text, *match.span(), 0.8)
    for label in find_labels(text):
        match = _FIELD.match(text, label.end) if label.kind == "ADDRESS" else None
        before = text[max(0, label.start - 1) : label.start]
        if (
            not match
            or before in ("*", "&", "_")
            or (match[1] and before not in ("", "\n"))
            or _NO_VALUE.match(match[2])
        ):
            continue
        if _DIGIT.search(match[2]) and _THREE_LETTERS.search(match[2]):
            yield Span(match.start(2), match.start(2) + len(match[2].rstrip()), "ADDRESS", 0.8, "builtin.label")


def _find_compounds(text: str, language: str) -> Iterator[re.Match[str]]:
    """Yields matches of streets whose name and kind are one word, with a number: "Lindenstraße 12a"."""
    lower, in_language = lower_text(text), language in WITH_COMPOUNDS
    if not in_language and not any(kind in lower for kind in _COMPOUNDS_EVERYWHERE):
        return
    # A match has a number after a kind of street, fewer than 200 characters before it and fewer than 100 after it.
    places = [at.start() for at in _NUMBER_BEHIND.finditer(text) if lower.endswith(_COMPOUNDS, 0, at.start())]
    for match in _ONE_WORD.finditer(text, max(0, places[0] - 200), places[-1] + 100) if places else ():
        if _SURE_COMPOUND.search(match[0]) or (
            in_language
            and ((match[0][0].isupper() and _fills_line(text, match)) or _TOWN_BEHIND.match(text, match.end()))
        ):
            yield match


def find_postcode_towns(text: str, cities: frozenset[str]) -> Iterator[Span]:
    """Yields the spans of postcodes with a listed town: "10115 Berlin". cities: the towns, in lower case."""
    for match in _TOWN.finditer(text):
        words = match[1].casefold().split(" ")
        if words[0] not in NAMED_THINGS and any(" ".join(words[:count]) in cities for count in (1, 2, 3)):
            yield Span(*match.span(), "ADDRESS", 0.8)


def _fills_line(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 1]
    return before in ("", "\n") and after in ("", "\n", ",")


def _is_no_street(text: str, match: re.Match[str], language: str) -> bool:
    """Returns True if a match of "kind of street, name, number" is no address: "al. Nature 2019" after "et"."""
    street = match[0]
    if street.startswith("al.") and text.endswith("et ", 0, match.start()):
        return True  # "et al. Nature 2019"
    if street.startswith(("R.", "V.")):
        return language not in ("pt", "it")
    if street.lower().startswith("via ") and language not in ("it", "es"):
        return "," not in street and not _TOWN_BEHIND.match(text, match.end())  # "Via Bluetooth 5"
    if street[0].islower() and not street.startswith(("c/", "ul.", "al.", "os.", "pl.")):
        # In lower case these are words of the language; an address has a capital after them.
        return language not in ("es", "it", "pt", "pl", "fr") and not _CAPITAL.search(street)
    return False


def _with_town(text: str, start: int, end: int, score: float) -> Span:
    tail = _TAIL.match(text, end)
    return Span(start, tail.end() if tail else end, "ADDRESS", score)
