"""Describes the grammar of a name, so that its surrogate fits the words around it: gender, first letter, ending.

text                    a surrogate must               because
Anna ist meine Tante    be the name of a woman         other words agree with the gender
la sœur d'Anna          begin with a vowel             an elided article stands before it
Napisz do Anny          end with -a, and decline: -y   the languages of _CASES inflect names
"""

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from eyas.privacy.case_insensitive import fold_word, strip_accents
from eyas.privacy.cjk_words import CJK_LANGUAGES, FORMS, NEUTRAL, find_script, is_cjk, list_cjk_names
from eyas.privacy.word_lists import UNICASED, load_lexicon, person_names, read_entries

_VOWELS = "aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýąęóаеёиоуыэюя"
_SIBILANTS = "szxßçśźżсзц"  # after these, German, Swedish and Dutch add no "s"
_MIN_CHOICES = 4  # names of one shape; from fewer, people could be recognized


class NameShape(NamedTuple):
    """The properties that a name and its surrogate share.

    Attributes:
        gender: "female" or "male"; "" if the lists have the name for both genders or not at all.
        starts_with_vowel: An elided article may stand before the name. None: any first letter.
        ending: The ending that decides how the name declines. None: any ending.
    """

    gender: str
    starts_with_vowel: bool | None
    ending: str | None

    def relaxed(self) -> "tuple[NameShape, ...]":
        """Returns the shapes to try, the strictest first."""
        return (self, NameShape(self.gender, None, self.ending), NameShape(self.gender, None, None))


def find_shape(name: str, language: str) -> NameShape:
    """Returns the shape of one word of a name in the nominative."""
    if is_cjk(name):
        return NameShape("", None, f"{len(name)} {find_script(name)}")
    if language in UNICASED and not name.isascii():
        return NameShape(_find_gender(fold_word(name.split()[0]), language), None, None)
    lower = name.casefold()
    female, male = lower in load_lexicon().female_names, lower in load_lexicon().male_names
    gender = "" if female == male else "female" if female else "male"
    endings = sorted({ending for ending, _ in _pairs("cases_of_names", language)} - {""}, key=len, reverse=True)
    ending = next(filter(lower.endswith, endings), "")
    if not ending:
        ending = "vowel" if lower[-1] in _VOWELS else "sibilant" if lower[-1] in _SIBILANTS else "consonant"
    return NameShape(gender, strip_accents(lower)[0] in "aeiou", ending)


def _find_gender(form: str, language: str) -> str:
    """Returns the gender of an Arabic or a Hindi first name: "female", "male", or "" for both or neither."""
    women, men = (form in _names_of(gender, language) for gender in ("women", "men"))
    return "" if women == men and form != "عبد" else "female" if women else "male"


@cache
def _names_of(gender: str, language: str) -> frozenset[str]:
    return frozenset(map(fold_word, read_entries(f"given_names_of_{gender}", language)))


@cache
def _names_by_shape(role: str, language: str) -> dict[NameShape, tuple[str, ...]]:
    names = list(person_names(role, language))
    if language in CJK_LANGUAGES:
        names += list_cjk_names(role, language)
    if role == "last":
        names += [name.removesuffix(male) + female for male, female in _pairs("female_last_names", language)
                  for name in names if name.endswith(male)]  # fmt: skip
    groups: dict[NameShape, list[str]] = {}
    patronymics = tuple(read_entries("endings_of_patronymics", language))
    for name in names:
        # Without a known gender, every name with the ending fits. A patronymic stands for patronymics only.
        shapes = (some for shape in find_shape(name, language).relaxed() for some in (shape, shape._replace(gender="")))
        for shape in {*shapes}:
            if patronymics and name.endswith(patronymics) and shape.ending is None:
                continue
            groups.setdefault(shape, []).append(name)
            if shape.ending and shape.ending.endswith(NEUTRAL):  # fits beside both forms of Chinese characters
                for form in FORMS:
                    groups.setdefault(shape._replace(ending=shape.ending.removesuffix(NEUTRAL) + form), []).append(name)
    return {shape: tuple(sorted(group)) for shape, group in groups.items()}


def find_fitting_names(name: str, role: str, language: str) -> tuple[str, ...]:
    """Returns the names whose shape fits `name`, from which its surrogate is picked; all names if too few fit.

    Args:
        name: One word of a name in the nominative.
        role: "first" or "last".
        language: The language of the record (ISO 639-1).
    """
    groups = _names_by_shape(role, language)
    for shape in find_shape(name, language).relaxed():
        if len(groups.get(shape, ())) >= _MIN_CHOICES:
            return groups[shape]
    return person_names(role, language)


class Inflection(NamedTuple):
    """A form of a name: its nominative, and the endings of both. "Anny" -> "Anna", "a", "y"."""

    nominative: str
    ending: str
    case: str

    def apply(self, nominative: str) -> str:
        """Returns another name in the same form: "Joanna" -> "Joanny". Returns it unchanged if its ending differs."""
        return nominative.removesuffix(self.ending) + self.case if nominative.endswith(self.ending) else nominative


def find_inflection(form: str, known: Collection[str], language: str) -> Inflection | None:
    """Returns the inflection of a name, or None if its nominative is not in `known`.

    Args:
        form: One word of a name.
        known: Names in lower case.
        language: The language of the record (ISO 639-1).
    """
    lower = form.casefold()
    pairs = _pairs_by_letter(language)
    for ending, case in pairs.get(lower[-1:]) or pairs[""]:
        stem = form[: len(form) - len(case)]
        if lower.endswith(case) and len(stem) > 1 and (stem + ending).casefold() in known:
            return Inflection(stem + ending, ending, case)
    return None


@cache
def _pairs_by_letter(language: str) -> dict[str, list[tuple[str, str]]]:
    """Returns the pairs of _pairs("cases_of_names") by the last letter of the case; "" has those for all."""
    pairs = _pairs("cases_of_names", language)
    letters = {case[-1:] for _, case in pairs} | {""}
    return {letter: [(ending, case) for ending, case in pairs if case[-1:] in ("", letter)] for letter in letters}


@cache
def _pairs(table: str, language: str) -> tuple[tuple[str, str], ...]:
    """Returns the entries "a>y" of a table as pairs ("a", "y"), those with the longest second part first."""
    pairs = (entry.partition(">") for entry in read_entries(table, language))
    return tuple(sorted(((a, b) for a, _, b in pairs), key=lambda pair: (-len(pair[1]), -len(pair[0]), pair)))
