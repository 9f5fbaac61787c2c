"""Surrogates: made-up values that replace personal data. A value gets the same surrogate everywhere in a run.

A surrogate has the kind and the shape of its value: a phone number becomes another phone number with the same grouping.
HMAC-SHA256(key, kind and value in lower case) selects it, so that nobody can compute the value without the key. Another
key gives other surrogates. A name is replaced part by part: after "Anna Schmidt", a single "Anna" gets the same
surrogate as the first name. Two different values may get the same surrogate.
"""

import hashlib
import hmac
import os
import re
import secrets
import unicodedata
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from pathlib import Path

from eyas.base.errors import InputError
from eyas.base.storage import convert_write_errors
from eyas.privacy.case_insensitive import plain_text, strip_accents
from eyas.privacy.cjk_words import CJK_LANGUAGES, is_cjk, surname_size
from eyas.privacy.name_shapes import find_fitting_names, find_inflection
from eyas.privacy.word_lists import PARTICLES, UNICASED, city_names, person_names, read_by_language, read_data_file
from eyas.privacy.words import WORD

FIRST, LAST = "first", "last"  # the roles of a name's part
_OTHER_SCRIPTS = (*UNICASED, *CJK_LANGUAGES, "ru")
_LAST_LATIN = "\u024f"
_DATA = read_data_file("data/surrogates")
_DOMAINS, _NETWORKS, _STREETS = _DATA["domains"], _DATA["networks"], _DATA["streets"]
_LETTERS, _WIDTHS = _DATA["letters"], _DATA["numbers"]
_MAX_DAY, _YEARS = 31, 3  # a year of birth changes by three years at most
_PART = re.compile(rf"عبد[ \u00a0]{WORD}|{WORD}")  # "عبد الله" is one name
KEY_VARIABLE = "EYAS_PRIVACY_KEY"
MIN_KEY_BYTES = 16
_MAX_ATTEMPTS = 100  # picks until a surrogate is taken that the record does not hold


@lru_cache(10_000)
def name_parts(name: str) -> tuple[re.Match[str], ...]:
    """Returns the words of a name that are replaced, with their positions in `name`: all words but particles.

    "Ana de la Cruz" -> "Ana", "Cruz". An initial counts as a word.
    """
    parts = [part for word in _PART.finditer(name) for part in (_split_cjk(word) if is_cjk(word[0]) else (word,))]
    return tuple(p for p in parts if p[0].casefold() not in PARTICLES or (len(p[0]) == 1 and p[0].isupper()))


def _split_cjk(word: re.Match[str]) -> Iterator[re.Match[str]]:
    """Yields the surname and the given name in a word of Chinese, Japanese or Korean: "王小明" -> "王", "小明"."""
    size = 0 if re.search(r"[\s・·•＝]", word.string.strip()) else surname_size(word[0])
    for start, end in ((word.start(), word.start() + size), (word.start() + size, word.end())):
        if part := re.compile(r".+").match(word.string, start, end):
            yield part


class Surrogates:
    """The surrogates for one secret key. No method and no repr shows the key."""

    def __init__(self, key: bytes) -> None:
        """Stores the secret key. See `load_surrogate_key`."""
        self._key = key

    def replace_value(self, kind: str, text: str, language: str, avoid: frozenset[str] = frozenset()) -> str:
        """Returns the surrogate of a value that is no name.

        Args:
            kind: The kind of the value. Requirement: not "PERSON", for which `replace_name_part` is.
            text: The value.
            language: The language of the record (ISO 639-1).
            avoid: Towns and names that are not returned, in lower case.
        """
        language = _language_of(text, language)
        if kind == "LOCATION":
            return self._pick(kind, text, city_names(language), avoid)
        if kind == "EMAIL":
            return self._replace_email(text, language, avoid)
        if kind == "IP_ADDRESS":
            return self._replace_ip_address(text)
        if kind == "PHONE":
            return self._replace_phone_number(text)
        if kind == "ADDRESS":
            return self._replace_address(text, language)
        if kind == "HANDLE":
            name = self._replace_email(text, language, avoid).partition("@")[0].replace(".", "_")
            return "@" * text.startswith("@") + name
        if kind in _WIDTHS:
            new = re.sub(r"\d+", lambda group: self._replace_number(kind, text, group), text)
            return _PART.sub(lambda word: self._replace_month(word[0], language), new) if kind == "BIRTH_DATE" else new
        return self._scramble(kind, text)

    def replace_name_part(
        self, text: str, role: str, language: str, avoid: frozenset[str] = frozenset(), known: Collection[str] = ()
    ) -> str:
        """Returns the surrogate of one word of a name: "Anna" -> "Clara", "anna" -> "clara", "J" -> "K".

        The surrogate has the gender and the ending of the name, and its grammatical case: "Anny" -> "Klary".

        Args:
            text: The word.
            role: FIRST for a first name, LAST for a last name.
            language: The language of the record (ISO 639-1).
            avoid: Words in lower case that are not returned: the words of the record, so that one person's name does
                not become the surrogate of another person.
            known: Names of the record in lower case, of which `text` may be an inflected form.
        """
        if len(text) == 1 and not is_cjk(text):
            return _match_case(self._pick("INITIAL", text, tuple(_DATA["initials"])), text)
        language = _language_of(text, language)
        listed = _lower_names(role, language)
        form = None
        if text.casefold() not in listed:
            form = find_inflection(text, known, language) or find_inflection(text, listed, language)
        name = form.nominative if form else text
        choice = self._pick(f"PERSON.{role}", name, find_fitting_names(name, role, language), avoid)
        return form.apply(choice) if form else choice

    def _number(self, kind: str, value: str, below: int, attempt: int = 0) -> int:
        message = f"{kind}\0{attempt}\0{value}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hmac.digest(self._key, message, "sha256")) % below

    def _pick(self, kind: str, text: str, choices: tuple[str, ...], avoid: frozenset[str] = frozenset()) -> str:
        value = _normalize(text)
        for attempt in range(_MAX_ATTEMPTS):
            choice = choices[self._number(kind, value, len(choices), attempt)]
            if _normalize(choice) != value and _normalize(choice) not in avoid:
                return _match_case(choice, text)
        return _match_case(next(choice for choice in choices if _normalize(choice) != value), text)

    def _replace_email(self, text: str, language: str, avoid: frozenset[str]) -> str:
        value = _normalize(text)
        language = "en" if language in _OTHER_SCRIPTS else language
        first, last = (self._pick(f"EMAIL.{role}", text, person_names(role, language), avoid) for role in (FIRST, LAST))
        name = strip_accents(f"{first}.{last}").encode("ascii", "ignore").decode().lower()
        domain = _DOMAINS[self._number("EMAIL.domain", value, len(_DOMAINS))]
        return f"{name}{self._number('EMAIL.number', value, 90) + 10}@{domain}"

    def _replace_ip_address(self, text: str) -> str:
        value = _normalize(text)
        if ":" in text:
            return f"2001:db8::{self._number('IP6.a', value, 65535) + 1:x}:{self._number('IP6.b', value, 65535) + 1:x}"
        return f"{_NETWORKS[self._number('IP.net', value, 3)]}{self._number('IP.host', value, 254) + 1}"

    def _replace_phone_number(self, text: str) -> str:
        """Returns another phone number with the same grouping and the same first digits (country code or 0).

        The surrogate of a North American number (ten digits) ends with 555-01xx, which is reserved for fiction.
        """
        digits = re.sub(r"\D", "", plain_text(text))
        fresh = [str(self._number(f"PHONE.{place}", digits, 10)) for place in range(len(digits))]
        if (len(digits) == 10 and digits[0] not in "01") or (len(digits) == 11 and digits[0] == "1"):
            fresh[-10] = str(self._number("PHONE.area", digits, 8) + 2)
            fresh[-7:-2] = "55501"
            num_kept = len(digits) - 10
        elif text.lstrip("(").startswith("+"):
            num_kept = 2  # the country code
        else:
            num_kept = 4 if digits.startswith("00") else 1  # the country code, the trunk 0
        fresh[:num_kept] = digits[:num_kept]
        if "".join(fresh) == digits:
            fresh[-1] = str((int(digits[-1]) + 1) % 10)
        following = iter(fresh)
        return re.sub(r"\d", lambda old: _like_digit(next(following), old[0]), text)

    def _replace_number(self, kind: str, text: str, group: re.Match[str]) -> str:
        """Returns another number for a group of digits in a date or in coordinates. Their parts stay possible."""
        old = int(group[0])
        place, width = f"{kind}.{group.start()}", len(group[0])
        low, high = _WIDTHS[kind].get(str(width), (0, 10**width - 1))
        if kind == "BIRTH_DATE" and (width == 4 or old > _MAX_DAY):
            low, high = old - _YEARS, old + _YEARS
        elif kind == "COORDINATES" and text[: group.start()].endswith("."):
            low, high = 0, 10**width - 1
        new = low + self._number(place, _normalize(text), high - low + 1)
        new = new if new != old else low if old == high else old + 1
        return "".join(map(_like_digit, f"{new:0{width}d}", group[0]))

    def _replace_month(self, word: str, language: str) -> str:
        """Returns another month for the name of a month. Other words stay."""
        months = next((some for some in _list_months(language) if word.casefold() in some), ())
        if not months:
            return word
        month = self._pick("BIRTH_DATE.month", word, months)
        return month.capitalize() if word[0].isupper() else month

    def _replace_address(self, text: str, language: str) -> str:
        value = _normalize(text)
        names = person_names(LAST, language)
        name = names[self._number("ADDRESS.name", value, len(names))]
        number = self._number("ADDRESS.number", value, 199) + 1
        return _STREETS.get(language, _STREETS["en"]).format(name=name, number=number)

    def _scramble(self, kind: str, text: str) -> str:
        """Replaces each digit by another digit and each letter by another letter; other characters stay."""
        value = _normalize(text)
        result = []
        for place, char in enumerate(text):
            if char.isdecimal():
                digit = (int(char) + 1 + self._number(f"{kind}.{place}", value, 9)) % 10
                char = _like_digit(str(digit), char)
            elif char.isalpha():
                # Letters of other scripts stay, except those of Russian plates.
                lower = char.lower()
                letters = next((some for some in _LETTERS.get(kind, _LETTERS["others"]) if lower in some), lower)
                others = letters.replace(lower, "") or letters
                other = others[self._number(f"{kind}.{place}", value, len(others))]
                char = other.upper() if char.isupper() else other
            result.append(char)
        return "".join(result)


def _language_of(text: str, language: str) -> str:
    """Returns the language of a surrogate: English for a value in Latin letters inside a text of another script."""
    return "en" if language in _OTHER_SCRIPTS and max(text) <= _LAST_LATIN else language


def _like_digit(digit: str, like: str) -> str:
    """Returns a digit in the script of another digit: "7" like "٣" is "٧"."""
    return chr(ord(like) - int(like) + int(digit))


@cache
def _list_months(language: str) -> list[tuple[str, ...]]:
    months = read_by_language("month_names")
    return [tuple(sorted(months[some])) for some in (language, "en") if some in months]


@cache
def _lower_names(role: str, language: str) -> frozenset[str]:
    return frozenset(map(str.casefold, person_names(role, language)))


@lru_cache(maxsize=10_000)
def _normalize(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().replace("’", "'").split())


def _match_case(choice: str, like: str) -> str:
    if like.islower():
        return choice.lower()
    return choice.upper() if like.isupper() and (len(like) > 1 or len(choice) == 1) else choice


# --- the key ---------------------------------------------------------------------------------------------------------


def load_surrogate_key(key_file: str | None) -> bytes:
    """Returns the secret key: from `key_file`, else from EYAS_PRIVACY_KEY, else the key of this user.

    The key of a user is created once, in $XDG_DATA_HOME/eyas (~/.local/share/eyas). Processes on several machines need
    the same key: give all of them the same file or variable. No output contains the key.

    Args:
        key_file: A file with the key; None: see above.

    Raises:
        InputError: The key is too short or cannot be read.
    """
    if key_file is None and KEY_VARIABLE in os.environ:
        source, key = KEY_VARIABLE, os.environ[KEY_VARIABLE].strip().encode()
    else:
        source = _create_user_key() if key_file is None else Path(key_file)
        try:
            key = source.read_bytes().strip()
        except OSError as error:
            problem = f"The key file {source} cannot be read ({error.strerror})"
            raise InputError(problem, "Correct prompts.privacy.key_file") from None
    if len(key) < MIN_KEY_BYTES:
        problem = f"The key in {source} has {len(key)} bytes and needs at least {MIN_KEY_BYTES}"
        raise InputError(problem, "Make a key with: openssl rand -hex 32")
    return key


def _create_user_key() -> Path:
    """Returns the path of this user's key file. Creates the file, readable by this user only, if it is missing."""
    path = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "eyas" / "privacy.key"
    if not path.exists():
        with convert_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32) + "\n")
            except FileExistsError:  # another process was first
                pass
    return path


def key_id(key: bytes) -> str:
    """Returns an id of the key for ledger.json: equal keys have equal ids, and the id does not reveal the key."""
    return hmac.new(key, b"eyas: which key is this", hashlib.sha256).hexdigest()[:16]
