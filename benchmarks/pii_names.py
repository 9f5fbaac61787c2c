"""Draws names for the labeled set, most from lists written for it and the rest from Faker's lists."""

import importlib
import pkgutil
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

import faker.providers.person
from pii_templates import HERE

OWN_SHARE = 0.77  # of the names, from names.txt
NATIVE_SHARE = 0.75  # of the names, from the language of the text
FAMILIES = ("tr", "ar", "vi", "hi", "ng", "zh")  # groups of names.txt without texts in the set
LOCALES = {
    "en": ("en_US", "en_GB"),
    "de": ("de_DE", "de_AT"),
    "fr": ("fr_FR",),
    "es": ("es_ES",),
    "it": ("it_IT",),
    "pt": ("pt_PT", "pt_BR"),
    "nl": ("nl_NL",),
    "pl": ("pl_PL",),
    "sv": ("sv_SE",),
}
OTHER_LOCALES = ("tr_TR", "en_IN", "ro_RO", "hr_HR", "hu_HU", "yo_NG", "id_ID", "fr_BE")
# language -> particles before a surname, and the share of surnames with one
PARTICLES = {
    "nl": (("van der ", "van den ", "de ", "van "), 0.3),
    "de": (("von ",), 0.04),
    "fr": (("de ", "Le "), 0.06),
    "pt": (("da ", "dos ", "de "), 0.2),
    "it": (("Di ", "De "), 0.1),
    "es": (("de la ", "del "), 0.06),
}
BARE = str.maketrans("łŁøØđĐßæÆœŒıđ", "lLoOdDsaAoOid")


@dataclass(frozen=True)
class Name:
    """A person's name."""

    first: str
    last: str

    @property
    def full(self) -> str:
        """The first name, then the surname."""
        return f"{self.first} {self.last}"


def parts(name: str) -> list[str]:
    """Returns the words of a name, folded."""
    return re.findall(r"[^\W\d_]+", fold(name))


def fold(text: str) -> str:
    """Returns the text casefolded and normalized (NFKC), with the Turkish i variants as a plain i."""
    return (
        unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        .replace("\u0307", "")
        .replace("ı", "i")
    )


@cache
def faker_words() -> frozenset[str]:
    """Returns every word of the names in all locales of Faker, folded."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(faker.providers.person.__path__):
        for which in ("first", "middle", "last"):
            for name in faker_names(module.name, which):
                found.update(parts(name))
    return frozenset(found)


@cache
def faker_names(locale: str, which: str) -> tuple[str, ...]:
    """Returns the first, middle or last names of one locale, sorted."""
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    found: set[str] = set()
    for attribute, value in vars(provider).items():
        if "name" in attribute and which in attribute and isinstance(value, Mapping | tuple | list | set):
            for names in value:  # some locales have pairs: one name in two scripts
                found.update([names] if isinstance(names, str) else names)
    return tuple(sorted(found))


def is_listed(name: str) -> bool:
    """Returns True if Faker's lists contain every word of the name with three letters or more."""
    return all(part in faker_words() for part in parts(name) if len(part) >= 3)


@cache
def own_words() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Returns the words of names.txt by group and use."""
    found = {}
    for line in (HERE / "names.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            head, words = line.split(": ")
            group, use = head.split()
            found[group, use] = tuple(words.split())
    return found


def draw_name(rng: Random, language: str) -> Name:
    """Draws a name that is plausible in a country of the language."""
    is_native = rng.random() < NATIVE_SHARE
    if rng.random() < OWN_SHARE:
        group = language if is_native else rng.choice(FAMILIES)
        return Name(rng.choice(own_words()[group, "first"]), _own_surname(rng, group))
    locale = rng.choice(LOCALES[language] if is_native else OTHER_LOCALES)
    first = rng.choice([name for name in faker_names(locale, "first") if len(max(parts(name), key=len)) >= 3])
    last = rng.choice([name for name in faker_names(locale, "last") if len(max(parts(name), key=len)) >= 3])
    return Name(first, last)


def _own_surname(rng: Random, group: str) -> str:
    words = own_words()
    surname = rng.choice(words[group, "last"])
    if (group, "start") in words and rng.random() < 0.5:
        middle = rng.choice(("", rng.choice(words[group, "middle"])))
        surname = rng.choice(words[group, "start"]) + middle + rng.choice(words[group, "end"])
    if group == "es" and rng.random() < 0.4:
        surname += " " + rng.choice(words[group, "last"])
    particles, share = PARTICLES.get(group, ((), 0.0))
    return rng.choice(particles) + surname if rng.random() < share else surname


def ascii_letters(name: str) -> str:
    """Returns the name in the ASCII letters of an e-mail address."""
    plain = unicodedata.normalize("NFKD", name.translate(BARE)).casefold()
    return re.sub(r"[^a-z]", "", plain)
