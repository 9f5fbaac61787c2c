"""Decides if a private value survives in what the filter wrote. A value survives if the output still contains:

names            any word of the name, as a whole word in any case. Names without spaces (Chinese, Japanese, Korean):
                 the whole name, or its given name
cities           the whole name
streets          the longest word of the street, or a postcode
e-mail           the part before the @, or a longer word of it
IP addresses     the whole address
coordinates      one of the two numbers
PINs             the whole number
birth dates      three quarters of the date; a year alone is no date
other numbers    a run of half of the letters and digits, without separators
phone numbers    a run of five of the last seven digits

Words that the template has itself do not count. Chinese, Japanese and Korean characters beside a number, an address or
a mail address end it, as spaces do.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

# Particles of names, which other names have, too.
PARTICLES = frozenset({
    "al", "bin", "da", "dal", "dalla", "das", "de", "degli", "dei", "del", "della", "delle", "den", "der", "di", "do",
    "dos", "du", "e", "el", "i", "ibn", "la", "las", "le", "los", "ould", "san", "ter", "van", "von", "vom", "y", "zu",
    "zum", "zur",
    "أبو", "آل", "بن", "عبد", "ولد",
})  # fmt: skip
LATIN_MARKS = re.compile("[\u0300-\u036f]")
MARKS = "\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963\u200c\u200d"
LETTER = rf"(?:[^\W\d_]|[{MARKS}])"
WORD = re.compile(f"{LETTER}+")
EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af々]")
KANA = re.compile("[\u3040-\u30ff]+")
ARABIC = re.compile("[\u0600-\u06ff]")
ARABIC_PREFIXES = "(?:[وفبلك]|ال|وال|بال|لل)?"
MIN_RUN = 5
MAC_RUN = 7  # the first six digits name the maker
DATE_SHARE = 0.75
PHONE_DIGITS, PHONE_RUN = 7, 5


@dataclass(frozen=True)
class PlantedValue:
    """A private value in a text. `slot` is the kind of the value; `after` holds the next two characters."""

    slot: str
    value: str
    after: str = ""


def fold(text: str) -> str:
    """Returns the text without case and accents; full-width and Arabic digits become ASCII digits."""
    bare = LATIN_MARKS.sub("", unicodedata.normalize("NFKD", text))
    digits = "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in bare)
    return unicodedata.normalize("NFC", digits).casefold()


def squeeze(text: str) -> str:
    """Returns only the letters and digits of the folded text."""
    return "".join(char for char in fold(text) if char.isalnum())


def survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    """Returns True if the value, or a part of it that tells it, stands in the output.

    Args:
        planted: The value.
        written: The text after the filter.
        fixed: The template without its values.
    """
    return _JUDGES.get(planted.slot, _number_survives)(planted, written, fixed)


def name_survives(name: str, written: str, fixed: str, after: str = "") -> bool:
    """Returns True if a word of a personal name stands in the output, and not in the template."""
    page, own = fold(written), fold(fixed)
    return any(_stands(part, page) and not _stands(part, own) for part in _name_parts(fold(name), fold(after)))


def _name_parts(name: str, after: str) -> Iterator[str]:
    words = [word for word in WORD.findall(name) if word not in PARTICLES]
    for word in words:
        if not EAST_ASIAN.search(word) or KANA.fullmatch(word):
            if len(word) >= 2:
                yield word
        elif len(word) >= 4:
            yield from (word[: len(word) // 2], word[len(word) // 2 :])
        elif len(word) == 3:
            yield word[1:]
        elif len(word) == 2:
            yield word
    if all(len(word) == 1 for word in words):
        yield "".join(words) + ("" if len(words) > 1 else after)


@cache
def _word_pattern(word: str) -> re.Pattern[str]:
    if EAST_ASIAN.search(word):
        return re.compile(re.escape(word))
    prefix = ARABIC_PREFIXES if ARABIC.search(word) else ""
    ending = f"{LETTER}{{0,2}}" if len(word) >= 5 else "s?"  # of a genitive or another case
    return re.compile(rf"(?<!{LETTER}){prefix}{re.escape(word)}{ending}(?!{LETTER})")


def _stands(word: str, page: str) -> bool:
    return _word_pattern(word).search(page) is not None


def _person_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    return name_survives(planted.value, written, fixed, planted.after)


def _city_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    city = squeeze(planted.value)
    return city in squeeze(written) and city not in squeeze(fixed)


def _street_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    value = fold(planted.value)
    page, own = fold(written), fold(fixed)
    if EAST_ASIAN.search(value):
        return _run_survives(squeeze(value), written, fixed)
    words = [word for word in WORD.findall(value.split(",")[0]) if word not in PARTICLES] or WORD.findall(value)
    codes = re.findall(r"\d{4,}", value)
    parts = [*codes, max(words, key=len)] if words else codes
    return any(_stands(part, page) and not _stands(part, own) for part in parts)


def _email_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    local = re.split(r"\s|@|\(|\[|＠", fold(planted.value), maxsplit=1)[0]
    parts = [local, *(word for word in WORD.findall(local) if len(word) >= 4)]
    page, own = fold(written), fold(fixed)
    return any(_part_stands(part, page) and not _part_stands(part, own) for part in parts)


def _part_stands(part: str, page: str) -> bool:
    return re.search(rf"(?<![^\W_]){re.escape(part)}(?![^\W_])", EAST_ASIAN.sub(" ", page)) is not None


def _whole_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    value, page = re.escape(fold(planted.value)), EAST_ASIAN.sub(" ", fold(written))
    return re.search(rf"(?<![\w.:]){value}(?![\w:]|\.\d)", page) is not None


def _coordinates_survive(planted: PlantedValue, written: str, fixed: str) -> bool:
    del fixed
    page = fold(written)
    numbers = re.findall(r"\d+[.,]\d{3,}", fold(planted.value)) or [fold(planted.value)]
    return any(number in page for number in numbers)


def _date_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    value = squeeze(planted.value)
    return _run_survives(value, written, fixed, -int(-DATE_SHARE * len(value)))


def _phone_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    digits = re.sub(r"\D", "", squeeze(planted.value))[-PHONE_DIGITS:]
    return _run_survives(digits, re.sub(r"\D", "", fold(written)), re.sub(r"\D", "", fold(fixed)), PHONE_RUN)


def _mac_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    return _run_survives(squeeze(planted.value), written, fixed, MAC_RUN)


def _number_survives(planted: PlantedValue, written: str, fixed: str) -> bool:
    return _run_survives(squeeze(planted.value), written, fixed)


def _run_survives(value: str, written: str, fixed: str, length: int | None = None) -> bool:
    """Returns True if a run of `length` characters of a squeezed value stands in the output; default: half of it."""
    length = min(len(value), length or max(MIN_RUN, -(-len(value) // 2)))
    page, own = squeeze(written), squeeze(fixed)
    runs = (value[start : start + length] for start in range(len(value) - length + 1))
    return any(run in page and run not in own for run in runs)


_JUDGES: dict[str, Callable[[PlantedValue, str, str], bool]] = {
    "person": _person_survives,
    "first": _person_survives,
    "last": _person_survives,
    "city": _city_survives,
    "street": _street_survives,
    "email": _email_survives,
    "obfuscated_email": _email_survives,
    "ip": _whole_survives,
    "pin": _whole_survives,
    "gps": _coordinates_survive,
    "birth_date": _date_survives,
    "phone": _phone_survives,
    "mac": _mac_survives,
}
