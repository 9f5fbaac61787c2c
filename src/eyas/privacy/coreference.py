"""Finds other mentions of values that the detectors found in the same record.

After "Anna Schmidt", such mentions are "Anna", "Annas" and the user name "aschmidt". After "555 0100", another one is
"555-0100". `filter.py` replaces all of them by the same surrogates.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice

from eyas.privacy.cjk_words import is_cjk, surname_size
from eyas.privacy.name_shapes import find_inflection
from eyas.privacy.span import Span
from eyas.privacy.surrogates import FIRST, LAST, name_parts
from eyas.privacy.word_lists import UNICASED, load_lexicon, read_entries
from eyas.privacy.words import Words, split_words

_DIGITS = re.compile(r"(?<!\d)\+?\(?\d(?:[ \u00a0.()/–-]{0,3}\d){5,18}(?!\d)")
_LOCAL_PART = re.compile(r"[._+-]")
_MIN_USER_NAME = 5  # letters
_REPEATED_KINDS = ("EMAIL", "IP_ADDRESS", "LOCATION")  # their values are searched letter by letter
_PREFIXES = ("و", "ف", "ب", "ل", "ك", "ول", "وب", "فل", "فب")  # of an Arabic word
_PARTS_OF_NAMES = ("joining_particles", "particles_before_names", "last_parts_of_names", "initials", "function_words")
MAX_REPEATED = 100  # values of a record that are searched again: each is one pass over its texts


class Mentions:
    """The values that were found in one record, and the search for other mentions of them."""

    def __init__(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> None:
        """Collects the values of the spans.

        Args:
            texts: The texts of the record.
            spans: The spans of each text.
        """
        self.roles: dict[str, str] = {}  # part of a name in lower case -> FIRST or LAST
        self.user_names: dict[str, tuple[str, ...]] = {}  # "aschmidt" -> the parts ("a", "schmidt") it is joined from
        self.from_email: set[str] = set()  # parts that only an e-mail address gave: names where capitalized
        self.digits: set[str] = set()  # of phone numbers
        self.values: dict[str, str] = {}  # other values -> their kind
        found = dict.fromkeys((span.kind, text[span.start : span.end]) for text, group in zip(texts, spans, strict=True)
                              for span in group)  # fmt: skip
        names = [value for kind, value in found if kind == "PERSON"]
        people = [([part[0] for part in name_parts(name)], "," in name or is_cjk(name)) for name in names]
        # The longest names come first: they say which part is a first name and which a last name.
        for parts, is_reversed in sorted(people, key=lambda item: (-len(item[0]), item[0])):
            self._add_name([part.casefold() for part in parts if len(part) > 1 or is_cjk(part)], is_reversed)
        for kind, value in found:
            if kind == "EMAIL":
                self._add_email(value)
            if kind == "PERSON" and is_cjk(value):  # no spaces separate the names from other words
                parts = (value, *(part[0] for part in name_parts(value)))
                self.values |= dict.fromkeys((part for part in parts if len(part) > 1), kind)
            elif kind == "PHONE":
                self.digits.add(re.sub(r"\D", "", value))
            elif kind in _REPEATED_KINDS and len(value) > 2 - is_cjk(value) and len(self.values) < MAX_REPEATED:
                self.values[value] = kind

    def _add_name(self, parts: Sequence[str], is_reversed: bool) -> None:
        for place, part in enumerate(parts):
            self.roles.setdefault(part, _role_of(part, place, len(parts), is_reversed))
        if len(parts) >= 2:
            first, last = parts[0], parts[-1]
            for joined in ((first, last), (first[0], last), (last, first), (first, last[0]), (last, first[0])):
                if len("".join(joined)) >= _MIN_USER_NAME:
                    self.user_names.setdefault("".join(joined), joined)

    def _add_email(self, address: str) -> None:
        """Adds the names in an address such as tevita.fifita@web.de: "tevita" and "fifita"."""
        local = address.partition("@")[0].casefold()
        words = [word for word in _LOCAL_PART.split(local) if word.isalpha() and len(word) > 2]
        if len(words) == 2 and load_lexicon().common.isdisjoint(words):
            for word, role in zip(words, (FIRST, LAST), strict=True):
                if word not in self.roles:
                    self.roles[word] = role
                    self.from_email.add(word)

    def find(self, text: str, language: str, with_names: bool) -> Iterator[Span]:
        """Yields every mention, in one text, of the personal values that detectors found anywhere in the record.

        Args:
            text: A text of the record.
            language: The language of the record (ISO 639-1).
            with_names: Yields mentions of names, too.
        """
        if with_names and self.roles:
            yield from self._find_names(text, language)
        for match in _DIGITS.finditer(text) if self.digits else ():
            if re.sub(r"\D", "", match[0]) in self.digits:
                yield Span(*match.span(), "PHONE", 0.5)
        for value, kind in islice(self.values.items(), MAX_REPEATED):
            start = text.find(value)
            while start >= 0:
                end = start + len(value)
                is_word = not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum()
                if (is_word or is_cjk(value)) and (kind != "PERSON" or with_names):
                    yield Span(start, end, kind, 0.5)
                start = text.find(value, end)

    def _find_names(self, text: str, language: str) -> Iterator[Span]:
        words, common = split_words(text), load_lexicon().common
        for i, lower in enumerate(words.lowers):
            for size in (1, 2) if language == "ar" and lower not in self.roles else ():
                if lower[:size] in _PREFIXES and len(lower) > size + 2 and self._is_certain(lower[size:]):
                    yield Span(words.starts[i] + size, words.ends[i], "PERSON", 0.5, "coreference")
            is_form = words.is_capital(i) and len(lower) > 3 and lower not in common
            is_form = is_form and find_inflection(lower, self.roles, language) is not None
            if lower in self.user_names or is_form or self._is_name(words, i):
                yield Span(words.starts[i], words.ends[i], "PERSON", 0.5, "coreference")

    def _is_name(self, words: Words, i: int) -> bool:
        """Returns True if word i is a part of a known name.

        A name that is an ordinary word as well, such as "Will", must be capitalized inside a sentence.
        """
        lower, lexicon = words.lowers[i], load_lexicon()
        if len(lower) == 1:
            return False
        if lower not in self.roles:
            return "'" in lower and lower.replace("'", "") in self.roles
        if lower in self.from_email:
            return words.is_capital(i)
        if lower not in lexicon.common and lower not in lexicon.ambiguous:
            return self._is_certain(lower)
        return words.is_capital(i) and (not words.starts_sentence(i) or _is_addressed(words, i))

    def _is_certain(self, lower: str) -> bool:
        """Returns True for a part of a known name that is no ordinary word of a language without capitals."""
        return lower in self.roles and lower not in _unicased("first_names_that_are_words", *_PARTS_OF_NAMES)


@cache
def _unicased(*tables: str) -> frozenset[str]:
    """Returns the entries of tables of the languages without capitals."""
    return frozenset[str]().union(*(read_entries(table, language) for table in tables for language in UNICASED))


def _role_of(part: str, place: int, count: int, is_reversed: bool) -> str:
    """Returns FIRST or LAST for one part of a name.

    Args:
        part: The part in lower case.
        place: Its index in the name.
        count: The number of parts in the name.
        is_reversed: The name has the last name first: "Fifita, Tevita".
    """
    if is_cjk(part) and count == 1:
        return LAST if surname_size(part) == len(part) else FIRST
    lexicon = load_lexicon()
    is_first, is_last = part in lexicon.first_names, part in lexicon.last_names or part in _unicased("surnames")
    if is_first != is_last:
        return FIRST if is_first else LAST
    return FIRST if count == 1 or (place < max(1, count - 1)) != is_reversed else LAST


def _is_addressed(words: Words, i: int) -> bool:
    """Returns True if the text after word i shows a name at the start of a sentence: "Will, ..." or "Will Smith"."""
    after = words.text[words.ends[i] : words.ends[i] + 2]
    followed = i + 1 < len(words) and words.is_capital(i + 1)
    return after[:1] in (",", "!", "\n", "") or after in ("'s", "’s") or followed
