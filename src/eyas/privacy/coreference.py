"""Further mentions of the values of a record: parts of a name, user names made of them, a number grouped otherwise."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eyas.privacy.span import Span
from eyas.privacy.surrogates import FIRST, LAST, name_parts
from eyas.privacy.word_lists import load_lexicon
from eyas.privacy.words import Words, split_words

_DIGITS = re.compile(r"(?<!\d)\+?\(?\d(?:[ \u00a0.()/–-]{0,3}\d){5,18}(?!\d)")
_LOCAL_PART = re.compile(r"[._+-]")
# Endings that a name's case adds, by language; the longest first.
CASE_ENDINGS = {
    "de": ("s",),
    "sv": ("s",),
    "nl": ("s",),
    "pl": ("owi", "iem", "ami", "em", "im", "ie", "ów", "ej", "ą", "ę", "a", "u", "y", "i", "o"),
}
_MIN_USER_NAME = 5  # letters


@dataclass(frozen=True)
class RecordNames:
    """The parts of the names of a record, in lower case, and the user names that they make."""

    roles: Mapping[str, str]  # part -> FIRST or LAST
    user_names: Mapping[str, tuple[str, ...]]  # "aschmidt" -> ("a", "schmidt"): the parts it is joined from
    from_email: frozenset[str]  # parts that only an e-mail address gave: names where capitalized


def collect_names(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> RecordNames:
    """Returns the names of a record, from its spans of kind PERSON and the addresses of kind EMAIL."""
    values = [
        (span.kind, text[span.start : span.end]) for text, group in zip(texts, spans, strict=True) for span in group
    ]
    people = [([part[0] for part in name_parts(value)], "," in value) for kind, value in values if kind == "PERSON"]
    roles: dict[str, str] = {}
    user_names: dict[str, tuple[str, ...]] = {}
    # The longest names come first: they say which part is a first name and which a last name.
    for parts, is_reversed in sorted(people, key=lambda item: (-len(item[0]), item[0])):
        lowers = [part.casefold() for part in parts if len(part) > 1]
        for place, lower in enumerate(lowers):
            roles.setdefault(lower, _role_of(lower, place, len(lowers), is_reversed))
        if len(lowers) >= 2:
            first, last = lowers[0], lowers[-1]
            for joined in ((first, last), (first[0], last), (last, first), (first, last[0]), (last, first[0])):
                if len("".join(joined)) >= _MIN_USER_NAME:
                    user_names.setdefault("".join(joined), joined)
    from_email = _add_names_of_emails([value for kind, value in values if kind == "EMAIL"], roles)
    return RecordNames(roles, user_names, from_email)


def _role_of(lower: str, place: int, count: int, is_reversed: bool) -> str:
    """Returns FIRST or LAST for the part at this place among `count` parts; is_reversed: "Fifita, Tevita"."""
    lexicon = load_lexicon()
    is_first, is_last = lower in lexicon.first_names, lower in lexicon.last_names
    if is_first != is_last:
        return FIRST if is_first else LAST
    if count == 1:
        return FIRST
    return FIRST if (place < max(1, count - 1)) != is_reversed else LAST


def _add_names_of_emails(addresses: Sequence[str], roles: dict[str, str]) -> frozenset[str]:
    """Adds to `roles` the parts of addresses such as tevita.fifita@web.de, and returns those that are new."""
    added = set()
    for address in addresses:
        local = address.partition("@")[0].casefold()
        words = [word for word in _LOCAL_PART.split(local) if word.isalpha() and len(word) > 2]
        if len(words) == 2 and load_lexicon().common.isdisjoint(words):
            for word, role in zip(words, (FIRST, LAST), strict=True):
                if word not in roles:
                    roles[word] = role
                    added.add(word)
    return frozenset(added)


def find_names(text: str, names: RecordNames, language: str = "en") -> list[Span]:
    """Returns the parts of the names in a text, beyond what the detectors found. Its time is linear in the text.

    A part that is a word as well ("Mark", "Will") counts only with a capital letter in the middle of a sentence.
    """
    words, common = split_words(text), load_lexicon().common
    endings = CASE_ENDINGS.get(language, ())
    spans = []
    for i, lower in enumerate(words.lowers):
        if lower in names.user_names or _is_mention(words, i, names):
            spans.append(Span(words.starts[i], words.ends[i], "PERSON", 0.5))
        elif endings and words.is_capital(i) and lower not in common:
            length = _stem_length(lower, names, endings)
            if length:
                spans.append(Span(words.starts[i], words.starts[i] + length, "PERSON", 0.5))
    return spans


def _stem_length(lower: str, names: RecordNames, endings: tuple[str, ...]) -> int:
    """Returns how many letters of a word with an ending of its case are to be replaced; 0 where it is no name.

    "Annas": the name alone, its ending stays. Polish "Annie", "Annę": the name has lost its last letter, all goes.
    """
    for ending in endings:
        stem = lower[: -len(ending)]
        if len(stem) < 3 or not lower.endswith(ending):
            continue
        if stem in names.roles:
            return len(stem)
        if len(endings) > 1 and any(stem + vowel in names.roles for vowel in "aoe"):
            return len(lower)
    return 0


def _is_mention(words: Words, i: int, names: RecordNames) -> bool:
    lower, lexicon = words.lowers[i], load_lexicon()
    if lower not in names.roles:
        return "'" in lower and lower.replace("'", "") in names.roles
    if lower in names.from_email:
        return words.is_capital(i)
    if lower not in lexicon.common and lower not in lexicon.ambiguous:
        return True
    return words.is_capital(i) and (not words.starts_sentence(i) or _is_addressed(words, i))


def _is_addressed(words: Words, i: int) -> bool:
    """Returns True where a word that may open a sentence ("Will you") is a name: "Will," and "Will Smith"."""
    after = words.text[words.ends[i] : words.ends[i] + 2]
    followed = i + 1 < len(words) and words.is_capital(i + 1)
    return after[:1] in (",", "!", "\n", "") or after in ("'s", "’s") or followed


def find_phone_numbers(text: str, digits: frozenset[str]) -> Iterator[Span]:
    """Yields the phone numbers with these digits, in whatever grouping."""
    for match in _DIGITS.finditer(text):
        if re.sub(r"\D", "", match[0]) in digits:
            yield Span(match.start(), match.end(), "PHONE", 0.5)


def find_values(text: str, values: Mapping[str, str]) -> Iterator[Span]:
    """Yields the places where a value stands again, letter by letter; values: the value -> its kind."""
    for value, kind in values.items():
        start = text.find(value)
        while start >= 0:
            end = start + len(value)
            if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum():
                yield Span(start, end, kind, 0.5)
            start = text.find(value, end)


def replace_spans(text: str, spans: Sequence[Span], surrogate: Callable[[Span], str]) -> str:
    """Returns the text with every span replaced; the spans are in order and do not overlap."""
    pieces, done = [], 0
    for span in spans:
        pieces += [text[done : span.start], surrogate(span)]
        done = span.end
    return "".join((*pieces, text[done:]))
