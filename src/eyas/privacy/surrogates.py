"""Surrogates: for each value another of its kind and shape, the same one over the whole run, chosen by a secret key.

HMAC-SHA256(key, kind and value in lower case) picks; without the key nobody can tell which value stood there, and two
runs with two keys choose differently. A name is replaced part by part, so that "Anna Schmidt" and a later "Anna" stay
one person. Two people may get one surrogate, as two people bear one name.
"""

import hashlib
import hmac
import re
import unicodedata
from functools import cache

from eyas.privacy.lexicon import PARTICLES, city_names, first_names, last_names
from eyas.privacy.tokens import strip_accents

FIRST, LAST = "first", "last"  # the roles of a name's part
_LOCALES = {
    "en": "en_US",
    "de": "de_DE",
    "fr": "fr_FR",
    "es": "es_ES",
    "it": "it_IT",
    "pt": "pt_PT",
    "nl": "nl_NL",
    "pl": "pl_PL",
    "sv": "sv_SE",
}
_DOMAINS = ("example.com", "example.org", "example.net")  # reserved by RFC 2606
_NETWORKS = ("192.0.2.", "198.51.100.", "203.0.113.")  # for documentation, RFC 5737; IPv6 by RFC 3849
_PART = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_STREETS = {
    "en": "{number} {name} Street",
    "de": "{name}straße {number}",
    "fr": "{number} rue {name}",
    "es": "Calle {name} {number}",
    "it": "Via {name} {number}",
    "pt": "Rua {name} {number}",
    "nl": "{name}straat {number}",
    "pl": "ul. {name} {number}",
    "sv": "{name}gatan {number}",
}


def name_parts(name: str) -> list[re.Match[str]]:
    """The words of a name that are replaced: initials, no particles. Places count from the name's start."""
    return [
        part
        for part in _PART.finditer(name)
        if part[0].casefold() not in PARTICLES or (len(part[0]) == 1 and part[0].isupper())
    ]


class Surrogates:
    """Chooses surrogates with one key. The key stays in this object: no method or repr shows it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def replace_value(self, kind: str, text: str, language: str, avoid: frozenset[str] = frozenset()) -> str:
        """Another value of this kind for `text`; for a PERSON see `part`. No town of `avoid`, in lower case."""
        if kind == "LOCATION":
            return self._picked(kind, text, city_names(language), avoid)
        if kind == "EMAIL":
            return self._email(text, language)
        if kind == "IP_ADDRESS":
            return self._ip_address(text)
        if kind == "PHONE":
            return self._phone(text)
        if kind == "ADDRESS":
            return self._address(text, language)
        return self._scrambled(kind, text)

    def replace_name_part(self, text: str, role: str, language: str, avoid: frozenset[str] = frozenset()) -> str:
        """Another name for one part of a name, in its shape: "anna" lower-case, "ANNA" upper-case, "J" a letter.

        Never a word of `avoid`: what the record holds must not come back as somebody else's surrogate.
        """
        if len(text) == 1:
            letters = "ABCDEFGHJKLMNPRSTVW"
            return _shaped(self._picked("INITIAL", text, tuple(letters)), text)
        locale = _LOCALES.get(language, "en_US")
        return self._picked(f"PERSON.{role}", text, _first(locale) if role == FIRST else _last(locale), avoid)

    def _number(self, kind: str, value: str, below: int, turn: int = 0) -> int:
        message = f"{kind}\0{turn}\0{value}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hmac.new(self._key, message, hashlib.sha256).digest()) % below

    def _picked(self, kind: str, text: str, choices: tuple[str, ...], avoid: frozenset[str] = frozenset()) -> str:
        value = _canonical(text)
        for turn in range(100):
            choice = choices[self._number(kind, value, len(choices), turn)]
            if _canonical(choice) != value and _canonical(choice) not in avoid:
                return _shaped(choice, text)
        return _shaped(next(choice for choice in choices if _canonical(choice) != value), text)

    def _email(self, text: str, language: str) -> str:
        value = _canonical(text)
        locale = _LOCALES.get(language, "en_US")
        first, last = _first(locale), _last(locale)
        given = first[self._number("EMAIL.first", value, len(first))]
        name = f"{given}.{last[self._number('EMAIL.last', value, len(last))]}"
        domain = _DOMAINS[self._number("EMAIL.domain", value, len(_DOMAINS))]
        return f"{_ascii(name)}{self._number('EMAIL.number', value, 90) + 10}@{domain}"

    def _ip_address(self, text: str) -> str:
        value = _canonical(text)
        if ":" in text:
            return f"2001:db8::{self._number('IP6.a', value, 65535) + 1:x}:{self._number('IP6.b', value, 65535) + 1:x}"
        return f"{_NETWORKS[self._number('IP.net', value, 3)]}{self._number('IP.host', value, 254) + 1}"

    def _phone(self, text: str) -> str:
        """The same grouping. Of ten digits as in North America the last seven are 555-01xx, reserved for fiction."""
        digits = re.sub(r"\D", "", text)
        places = [place for place, char in enumerate(text) if char.isdigit()]
        fresh = [str(self._number(f"PHONE.{place}", digits, 10)) for place in range(len(digits))]
        if (len(digits) == 10 and digits[0] not in "01") or (len(digits) == 11 and digits[0] == "1"):
            fresh[-10] = str(self._number("PHONE.area", digits, 8) + 2)
            fresh[-7:-2] = "55501"
            fresh[: len(digits) - 10] = digits[: len(digits) - 10]
        else:
            kept = (
                2 if text.lstrip("(").startswith("+") else 4 if digits.startswith("00") else 1
            )  # country code, trunk 0
            fresh[:kept] = digits[:kept]
        if "".join(fresh) == digits:
            fresh[-1] = str((int(digits[-1]) + 1) % 10)
        result = list(text)
        for place, digit in zip(places, fresh, strict=True):
            result[place] = digit
        return "".join(result)

    def _address(self, text: str, language: str) -> str:
        value = _canonical(text)
        names = _last(_LOCALES.get(language, "en_US"))
        name = names[self._number("ADDRESS.name", value, len(names))]
        return _STREETS.get(language, _STREETS["en"]).format(
            name=name, number=self._number("ADDRESS.number", value, 199) + 1
        )

    def _scrambled(self, kind: str, text: str) -> str:
        """Other digits for digits and other letters for letters, the rest as it is."""
        value = _canonical(text)
        result = []
        for place, char in enumerate(text):
            if char.isdigit():
                char = str((int(unicodedata.digit(char, 0)) + 1 + self._number(f"{kind}.{place}", value, 9)) % 10)
            elif char.isalpha():
                other = chr(ord("a") + self._number(f"{kind}.{place}", value, 26))
                other = other if other != char.lower() else chr(ord("a") + (ord(other) - ord("a") + 1) % 26)
                char = other.upper() if char.isupper() else other
            result.append(char)
        return "".join(result)


@cache
def _first(locale: str) -> tuple[str, ...]:
    return first_names(locale)


@cache
def _last(locale: str) -> tuple[str, ...]:
    return last_names(locale)


def _canonical(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().replace("’", "'").split())


def _shaped(choice: str, like: str) -> str:
    if like.islower():
        return choice.lower()
    return choice.upper() if like.isupper() and (len(like) > 1 or len(choice) == 1) else choice


def _ascii(text: str) -> str:
    return strip_accents(text).encode("ascii", "ignore").decode().lower()
