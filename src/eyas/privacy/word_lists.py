"""Loads the word lists of the detectors, and joins them in one lexicon.

The sources are the folders in languages/, the names and towns of the installed package Faker (MIT), and the towns of
the telephone prefixes in the installed package phonenumbers (Apache-2.0).
languages/README.md explains the files of a folder. All entries are in lower case and none repeats
(tests/privacy/test_word_lists.py checks this).
"""

import contextlib
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from eyas.base.cached_file import load_cached
from eyas.base.config import load_toml
from eyas.privacy.case_insensitive import strip_accents

PACKAGE = Path(__file__).parent
# A folder without words.toml holds labels only: names are not found in its language.
LANGUAGES = tuple(sorted(path.parent.name for path in PACKAGE.glob("languages/??/words.toml")))
_MAX_CACHED_FILES = 3  # lexicons
_MIN_ACCENTED = 4  # letters of a word that people also write without its accents

# Scripts without spaces between words, or with words that grow at both ends.
UNSPACED = re.compile(r"[\u0590-\u0dff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u2600-\u27bf\U0001f4de-\U0001f4f2]")
_LATIN, _CYRILLIC = re.compile(r"[A-Za-zÀ-ɏḀ-ỿ'’ .-]+\Z"), re.compile(r"[А-яЁё-]+\Z")
_MAX_CITY_WORDS = 3
_TOWN_PARTS = re.compile(r"[/,(]| - ")  # "Albany, NY", "Horb/Sulz", "Olinda - PE"
UNICASED = ("ar", "hi")  # languages with spaces between words and without capital letters
_GIVEN_NAMES = {"given_names_of_women": ("", "female"), "given_names_of_men": ("", "male")}  # table -> genders


@cache
def read_data_file(path: str) -> dict[str, Any]:
    """Returns the tables of a TOML file of this package, for example "languages/de/words".

    Args:
        path: The path below this package, without ".toml".

    Raises:
        InputError: The file is missing or is not valid TOML.
    """
    return load_toml(PACKAGE / f"{path}.toml")


_LOCALES: dict[str, dict[str, str]] = read_data_file("data/faker_locales")
_LISTS = {name: locales.split() for name, locales in _LOCALES["lists"].items()}
_SCRIPT_LOCALES = {language: locales.split() for language, locales in _LOCALES["scripts"].items()}


@cache
def read_tables() -> dict[str, dict[str, str]]:
    """Returns the tables of all language folders: table -> language -> text. Two files of a folder share no table."""
    tables: dict[str, dict[str, str]] = {}
    for path in sorted((PACKAGE / "languages").glob("*/*.toml")):
        language = path.parent.name
        for table, text in read_data_file(f"languages/{language}/{path.stem}").items():
            assert language not in tables.setdefault(table, {}), f"{path} repeats the table {table}"
            tables[table][language] = text
    return tables


@cache
def tables_of_files(*names: str) -> frozenset[str]:
    """Returns the tables of the files languages/*/NAME.toml for these names."""
    paths = (path for name in names for path in (PACKAGE / "languages").glob(f"*/{name}.toml"))
    return frozenset(table for path in paths for table in read_data_file(f"languages/{path.parent.name}/{path.stem}"))


@cache
def read_entries(table: str, language: str) -> frozenset[str]:
    """Returns the entries of a table of one language; an empty set if the language lacks it.

    Args:
        table: The name of a table in the language folders. A text with a comma holds phrases; another one, words.
        language: The language (ISO 639-1), or "any" for the entries of no single language.
    """
    text = read_tables().get(table, {}).get(language, "")
    return frozenset(" ".join(entry.split()) for entry in text.split("," if "," in text else None)) - {""}


def read_by_language(table: str, unaccented: bool = False) -> dict[str, frozenset[str]]:
    """Returns the entries of a table: language -> entries. The key "any" holds entries of no single language.

    Args:
        table: The name of a table in the language folders.
        unaccented: Adds each entry of at least four letters without its accents, too: "señor" and "senor".
    """
    found = {}
    for language in read_tables()[table]:
        entries = read_entries(table, language)
        extra = {strip_accents(entry) for entry in entries if len(entry) >= _MIN_ACCENTED} if unaccented else set()
        found[language] = entries | extra
    return found


def read_words(*tables: str, unaccented: bool = False) -> frozenset[str]:
    """Returns the entries of several tables, of all languages together. See `read_by_language`."""
    by_language = (read_by_language(table, unaccented) for table in tables)
    return frozenset[str]().union(*(words for table in by_language for words in table.values()))


def any_of(*tables: str) -> str:
    """Returns a regular expression that matches any entry of these tables: "good morning|hello|hi"."""
    entries = sorted(read_words(*tables), key=lambda entry: (-len(entry), entry))
    return "|".join(map(re.escape, entries))


def words_of(*tables: str) -> str:
    """Returns a regular expression for the entries of tables: whole words, or anywhere in scripts without spaces."""
    entries = sorted(read_words(*tables, unaccented=True), key=lambda entry: (-len(entry), entry))
    spaced = "|".join(re.escape(entry) for entry in entries if not UNSPACED.search(entry))
    unspaced = "|".join(re.escape(entry) for entry in entries if UNSPACED.search(entry))
    return rf"(?:(?<![^\W\d_])(?:{spaced})(?![^\W\d_])|{unspaced})"


@cache
def read_kinds(table: str) -> dict[str, str]:
    """Returns a table of data/entity_labels.toml as label -> kind: {"PER": "PERSON", ...}."""
    kinds = read_data_file("data/entity_labels")[table]
    return {label: kind for kind, labels in kinds.items() for label in labels.split()}


@cache
def code_digest() -> str:
    """Returns the SHA-256 of the code and the data files of this package, in hex.

    It is part of the filter's digest, because a change of a rule or a list changes what the detectors find.
    """
    digest = hashlib.sha256()
    for path in sorted((*PACKAGE.glob("*.py"), *PACKAGE.rglob("*.toml"))):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


PARTICLES = read_words("particles")  # inside a name: "Ana de la Cruz"


class Lexicon(NamedTuple):
    """The lists that tell names from ordinary words, all in lower case. All detectors of a process share one lexicon.

    Attributes:
        first_names: All first names, with those in `ambiguous`.
        last_names: All last names.
        ambiguous: First names that are ordinary words as well: "mark", "will".
        stop: Words that are never part of a name: function words, countries.
        common: Ordinary words of the nine languages, with those in `stop`. One of them alone is no name.
        cities: Towns, of up to three words joined by one space.
        towns: More towns. Many of them are ordinary words of some language.
        core_names: First names of the countries where the nine languages are spoken.
        sure_names: First names that are no ordinary word. One of them, capitalized, is a name without more evidence.
        female_names: First names of women.
        male_names: First names of men.
    """

    first_names: frozenset[str]
    last_names: frozenset[str]
    ambiguous: frozenset[str]
    stop: frozenset[str]
    common: frozenset[str]
    cities: frozenset[str]
    towns: frozenset[str]
    core_names: frozenset[str]
    sure_names: frozenset[str]
    female_names: frozenset[str]
    male_names: frozenset[str]


@cache
def load_lexicon() -> Lexicon:
    """Returns the lexicon. The first process builds it (seconds); later ones read it from the cache directory (0.1 s).

    The name of the cached file holds a digest of this package, of Faker's version and of phonenumbers' version. A new
    version of any of them makes a new file.
    """
    versions = f"{version('faker')}\0{version('phonenumbers')}"
    code = hashlib.sha256(f"{code_digest()}\0{versions}".encode()).hexdigest()[:24]
    lists = json.loads(bytes(load_cached("privacy-lexicon", code, _build_lists, _MAX_CACHED_FILES)))
    return Lexicon(**{name: frozenset(words) for name, words in lists.items()})


def _build_lists() -> bytes:
    """Builds the fields of a Lexicon and returns them as JSON: {field: sorted words}."""
    certain = read_words("certain_first_names")
    persons = importlib.import_module("faker.providers.person")
    first, last = _read_names(module.name for module in pkgutil.iter_modules(persons.__path__))
    core = _read_names(_LISTS["core"])[0] | certain
    states, capitalized = read_words("states"), read_words("common_words")
    stop = (_country_words() - states | capitalized | read_words("function_words")) - certain
    common = (stop | _lorem_words(core)) - certain
    ambiguous = first & (common | read_words("first_names_that_are_words")) - certain
    lists = {
        "first_names": first | certain,
        "last_names": last,
        "ambiguous": ambiguous,
        "stop": stop,
        "common": common,
        "cities": _read_cities() - capitalized | states,
        "towns": _read_towns_of_prefixes() - first - last,
        "core_names": core,
        # Three letters are a word in some language, unless people of the nine languages bear the name.
        "female_names": _read_names(_LISTS["core"], "female")[0],
        "male_names": _read_names(_LISTS["core"], "_male")[0],
        "sure_names": frozenset(n for n in (first | certain) - ambiguous if len(n) > (2 if n in core else 3)),
    }
    return json.dumps({name: sorted(words) for name, words in lists.items()}, ensure_ascii=False).encode()


@cache
def person_names(part: str, language: str) -> tuple[str, ...]:
    """Returns the names from which surrogates are picked: sorted, each of one word, without ordinary words.

    Args:
        part: "first" for first names, "last" for last names.
        language: The language (ISO 639-1). A language without lists of names gets the English ones.
    """
    locale = _LOCALES["names"].get(language, "en_US")
    tables = ("surnames",) if part == "last" else tuple(_GIVEN_NAMES)
    own = frozenset[str]().union(*(read_entries(table, language) for table in tables))
    if language in UNICASED:
        return tuple(sorted(own - read_entries("first_names_that_are_words", language)))
    names = _read_names_of(part, locale)
    if language == "ru":
        names |= set(map(str.capitalize, own))
    if language in _SCRIPT_LOCALES:
        return tuple(sorted(names))
    common = load_lexicon().common | read_words("first_names_that_are_words")
    return tuple(sorted(name for name in names if name.isalpha() and len(name) > 2 and name.casefold() not in common))


def _read_names_of(part: str, locale: str) -> set[str]:
    names = _names_in(part, locale)
    return {name for name in names if locale[:2] not in _SCRIPT_LOCALES or (not name.isascii() and "{" not in name)}


def _names_in(part: str, locale: str, gender: str = "") -> Iterator[str]:
    """Yields Faker's first or last names of a locale. Patronymics ("middle names") count as last names."""
    provider = _provider("person", locale)
    for attribute in dir(provider):
        is_last = part == "last" and "middle" in attribute
        if (part in attribute or is_last) and gender in attribute and not attribute.endswith("pairs"):
            yield from _read_list(provider, attribute)


def read_names_of(part: str, language: str) -> frozenset[str]:
    """Returns Faker's first names or last names of a language without Latin letters, for example "zh"."""
    return frozenset[str]().union(*(_read_names_of(part, locale) for locale in _SCRIPT_LOCALES[language]))


def read_faker_words(language: str) -> frozenset[str]:
    """Returns the words of Faker's sample texts in Chinese, Japanese or Korean, and those of its occupations."""
    words = set[str]()
    for locale in _SCRIPT_LOCALES[language]:
        words.update(re.split(r"[\W_]+", "/".join(_read_list(_provider("job", locale), "jobs"))))
        words.update(_read_list(_provider("address", locale), "countries"))
        with contextlib.suppress(ImportError):  # not all of them have sample texts
            words.update(_provider("lorem", locale).word_list)
    return frozenset(words)


@cache
def city_names(language: str) -> tuple[str, ...]:
    """Returns the cities from which surrogates are picked, sorted, each of one word.

    They are cities of the language's country if Faker has a list of them, else large cities of the world.
    """
    if towns := read_entries("towns", language):
        endings = tuple(read_entries("endings_of_places", language))
        return tuple(sorted(town for town in towns if not town.endswith(endings) and " " not in town))
    locale = _LOCALES["cities"].get(language)
    attribute = _LOCALES["list_of_cities"].get(locale or "", "cities")
    listed = _read_list(_provider("address", locale), attribute) if locale else read_entries("cities", "any")
    return tuple(sorted({name for name in listed if " " not in name and name.isalpha()}))


def _read_names(locales: Iterable[str], gender: str = "") -> tuple[frozenset[str], frozenset[str]]:
    """Returns the words of all first names and the words of all last names in these locales of Faker.

    Args:
        locales: The locales, for example "de_DE".
        gender: "female" or "_male" returns only names that Faker lists for this gender.
    """
    parts: dict[str, set[str]] = {"first": set(), "last": set()}
    for locale in locales:
        is_russian = locale == "ru_RU"
        for part in parts:
            for name in filter((_CYRILLIC if is_russian else _LATIN).match, _names_in(part, locale, gender)):
                parts[part].update(word.casefold().replace("’", "'") for word in re.split("[ -]", name))
        if is_russian:
            tables = (table for table, genders in _GIVEN_NAMES.items() if gender.strip("_") in genders)
            parts["first"] |= _read_russian(*tables)
            parts["last"] |= _read_russian("surnames")
    short = {word for words in parts.values() for word in words if len(word) < 2 or "." in word} | PARTICLES
    return frozenset(parts["first"] - short), frozenset(parts["last"] - short)


def _read_russian(*tables: str) -> frozenset[str]:
    """Returns Russian names of these tables, also as people write them without the dots of "ё"."""
    words = frozenset[str]().union(*(read_entries(table, "ru") for table in tables))
    return words | {word.replace("ё", "е") for word in words}


def _country_words() -> frozenset[str]:
    names = [name for locale in _LISTS["countries"] for name in _read_list(_provider("address", locale), "countries")]
    names += _read_list(_provider("address", "en_US"), "states")
    return frozenset(word for name in names for word in re.split(r"\W+", name.casefold())) - {""}


def _lorem_words(first_names: frozenset[str]) -> frozenset[str]:
    """Returns ordinary words: those of Faker's sample texts in seven languages and of its list of English jobs.

    Args:
        first_names: First names that are not returned. The French, Spanish, Italian and Polish texts contain names.
    """
    words = {word for job in _read_list(_provider("job", "en_US"), "jobs") for word in re.split(r"\W+", job.casefold())}
    for locales, names in ((_LISTS["samples"], frozenset[str]()), (_LISTS["samples_with_names"], first_names)):
        words |= {word.casefold() for locale in locales for word in _provider("lorem", locale).word_list} - names
    return frozenset(words)


def _read_cities() -> frozenset[str]:
    names = set(read_entries("cities", "any"))
    for locale in _LISTS["cities"]:
        listed = set(_read_list(_provider("address", locale), _LOCALES["list_of_cities"].get(locale, "cities")))
        # Italy's list names every hamlet, ordinary words among them: only those of more than six letters count.
        names |= {name for name in listed if locale != "it_IT" or len(name) > 6}
    return _as_cities(names)


def _as_cities(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in names if len(name) > 3 and len(name.split()) <= _MAX_CITY_WORDS)


def _read_towns_of_prefixes() -> frozenset[str]:
    """Returns the towns of the telephone prefixes of all countries, in the languages of the towns."""
    prefixes = importlib.import_module("phonenumbers.geodata").GEOCODE_DATA.values()
    listed = {town for names in prefixes for language, town in names.items() if language in _LISTS["towns"]}
    return _as_cities({part.strip() for town in listed for part in _TOWN_PARTS.split(town)})


def _provider(topic: str, locale: str) -> Any:
    return importlib.import_module(f"faker.providers.{topic}.{locale}").Provider


def _read_list(provider: Any, attribute: str) -> list[str]:
    return list(_flatten(getattr(provider, attribute, None)))


def _flatten(value: Any) -> Iterator[str]:
    """Yields all strings in nested lists, tuples, sets and mappings (keys). Some locales pair two scripts of a name."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | dict | set):
        for item in value:
            yield from _flatten(item)
