"""Whether a value looks like a name, a place, a number: the shape and the words, for a cell, a field, an item."""

import re
from dataclasses import dataclass

from eyas.privacy.lexicon import PARTICLES, Lexicon
from eyas.privacy.tokens import split_words
from eyas.privacy.word_context import WordContext

MAX_NAME = 60  # characters of a name
# Letters with apostrophes and full stops; one comma ("Fifita, Tevita").
_NAME = re.compile(
    r"[^\W\d_][^\W\d_'’.]*(?:['’.][^\W\d_]*)*(?:(?:, | |\u00a0|-|  )[^\W\d_'’][^\W\d_'’.]*(?:['’.][^\W\d_]*)*){0,6}\Z"
)
_CAMEL = re.compile(r"(?!Mc|Mac|De|Di|Da|Du|La|Le|Van|Von|Fitz|Ó|O')[^\W\d_]*[a-zß-ÿ][A-ZÀ-Þ]")
TITLES = frozenset(
    """
    mr mrs ms miss dr prof sir madam mme mlle m herr frau fr hr sr sra srta don doña dña sig sigra dott dottssa dhr mevr
    heer drs ir ing mgr inż pan pani panie herrn señor señora senhor senhora signor signora meneer mevrouw monsieur
    madame fru professor doktor doctor
    """.split()  # noqa: SIM905
)
NON_VALUES = frozenset(
    """
    none null nil nan na unknown unbekannt inconnu desconocido sconosciuto desconhecido onbekend nieznany okänd
    anonymous anonym anonyme yes no true false str string text varchar int integer float
    bool list dict any object date datetime optional required total summe sum gesamt
    average mean remote online value example name test team everyone all staff tbd todo redacted
    str char bool boolean float double datetime uuid attr args obj cust fname lname fn ln asc desc nullable
    """.split()  # noqa: SIM905
)
_COMPANIES = frozenset(
    """
    gmbh inc ltd llc corp ag kg bv nv srl spa sarl oy ab plc group company co corporation bank university université
    universität school hospital hotel institute restaurant services solutions systems technologies foundation
    """.split()  # noqa: SIM905
)
_PLACE = re.compile(
    r"(?:\d{2,6}(?:[ -](?:\d{2,4}|[A-Z]{2}))? )?[^\W\d_][^\W\d_'’.-]*(?:[ '’.-]{1,2}[^\W\d_]+){0,5}"
    r"(?:,? \(?[^\W\d_][^\W\d_ .]+\)?)?\Z"
)
_PHONE = re.compile(r"[(+]?[\d(][\d ()./\u00a0–-]{4,22}\d(?:\s?(?:x|ext\.?)\s?\d{1,5})?\Z")
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\Z")
_EMAIL = re.compile(r"[^\s@<>]{1,64}@[^\s@<>]{3,}\Z|\S{2,40} ?[\[(]at[\])] ?\S{2,40}\Z")
_ACCOUNT = re.compile(r"[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]){8,30}\Z|\d(?:[ -]?\d){5,25}\Z")
_ID = re.compile(r"(?=(?:[^\d]*\d){4})[A-Za-z0-9](?:[ ./-]?[A-Za-z0-9]){4,22}\Z")
_STREET = re.compile(r"(?=.*\d)(?=.*[^\W\d_]{3})(?!.*[@<>=]|.*://|0x)[^\n]{6,100}\Z")


@dataclass(frozen=True)
class ValueMatcher:
    """Judges values by the word lists and a language."""

    lexicon: Lexicon
    language: str

    def is_name(self, value: str, sure: bool = False, any_case: bool = False) -> bool:
        """Whether `value` may be a whole name, on a list or not. sure: the label says so, so that "Young" is one."""
        if not 2 <= len(value) <= MAX_NAME or not _NAME.match(value) or _CAMEL.search(value):
            return False
        words, lex = split_words(value), self.lexicon
        near = WordContext(words, lex, self.language)
        good = neutral = 0
        for i, lower in enumerate(words.lowers):
            if lower in TITLES and len(words) > 1:
                neutral += words.is_capital(i)
                continue
            if lower in PARTICLES and not words.is_capital(i):
                continue
            if not words.is_capital(i) and not (any_case and not near.is_word(i)):
                return False
            if lower in NON_VALUES or lower in _COMPANIES:
                return False
            if words.is_initial(i) or lower in PARTICLES:
                continue
            listed = lower in lex.first_names or lower in lex.last_names
            if near.is_stop(i) and not listed:
                return False
            if near.is_word(i) and not (sure and listed):
                neutral += 1
            elif len(value) > 3 or not value.isupper() or sure:
                good += 1
        return good > 0 or (sure and neutral > 0) or (neutral >= 2 and words.lowers[0] in lex.first_names)

    def has_listed_name(self, value: str) -> bool:
        """Whether a word of the value is a listed name and nothing else."""
        lex = self.lexicon
        return any(
            lower in lex.sure_names or (lower in lex.last_names and lower not in lex.common and lower not in lex.cities)
            for lower in split_words(value).lowers
            if len(lower) > 2
        )

    def is_city(self, value: str) -> bool:
        return value.casefold() in self.lexicon.cities

    def matches(self, kind: str, value: str, sure: bool = False) -> bool:
        """Whether a value may be of this kind, given a label that says so."""
        if kind == "PERSON":
            return self.is_name(value, sure)
        if kind == "LOCATION":
            return self._place(value)
        digits = sum(char.isdigit() for char in value)
        if kind == "PHONE":
            return 6 <= digits <= 16 and bool(_PHONE.match(value)) and not _DATE.match(value)
        if kind == "EMAIL":
            return bool(_EMAIL.match(value))
        if kind == "ACCOUNT":
            return bool(_ACCOUNT.match(value))
        if kind == "GOVERNMENT_ID":
            return bool(_ID.match(value)) and not _DATE.match(value)
        return kind == "ADDRESS" and bool(_STREET.match(value)) and " " in value

    def _place(self, value: str) -> bool:
        if not 3 <= len(value) <= MAX_NAME or not _PLACE.match(value) or value[0].islower():
            return False
        lowers = split_words(value).lowers
        return bool(lowers) and not all(lower in self.lexicon.stop or lower in NON_VALUES for lower in lowers)
