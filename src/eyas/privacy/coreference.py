"""Every mention of what was found in a record: parts of a name, user names made of them, a number grouped otherwise."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eyas.privacy.lexicon import load_lexicon
from eyas.privacy.span import Span
from eyas.privacy.surrogates import FIRST, LAST, name_parts
from eyas.privacy.tokens import Words, split_words

_DIGITS = re.compile(r"(?<!\d)\+?\(?\d(?:[ \u00a0.()/–-]{0,3}\d){5,18}(?!\d)")
_LOCAL_PART = re.compile(r"[._+-]")
# Endings that a name's case adds, by language; the longest first.
CASE_ENDINGS = {
    "de": ("s",),
    "sv": ("s",),
    "nl": ("s",),
    "pl": ("owi", "iem", "ami", "em", "im", "ie", "ów", "ej", "ą", "ę", "a", "u", "y", "i", "o"),
}
_MIN_USER = 5  # letters of a user's name


@dataclass(frozen=True)
class RecordNames:
    """The parts of the names of a record, in lower case: what each is, and the user names that they make."""

    roles: Mapping[str, str]  # part -> FIRST or LAST
    user_names: Mapping[str, tuple[str, ...]]  # "aschmidt" -> ("a", "schmidt"): the parts it is joined from
    from_email: frozenset[str]  # parts that only an e-mail address gave: names where capitalised


def collect_names(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> RecordNames:
    """The names of a record, from its spans of kind PERSON and the addresses of kind EMAIL."""
    found = [
        [part[0] for part in name_parts(text[span.start : span.end])]
        for text, group in zip(texts, spans, strict=True)
        for span in group
        if span.kind == "PERSON"
    ]
    before_comma = [
        "," in text[span.start : span.end]
        for text, group in zip(texts, spans, strict=True)
        for span in group
        if span.kind == "PERSON"
    ]
    roles: dict[str, str] = {}
    users: dict[str, tuple[str, ...]] = {}
    # The longest names first: they tell first from last names.
    for words, reverse in sorted(zip(found, before_comma, strict=True), key=lambda item: (-len(item[0]), item[0])):
        lowers = [word.casefold() for word in words if len(word) > 1]
        for place, lower in enumerate(lowers):
            roles.setdefault(lower, _role(lower, place, len(lowers), reverse))
        if len(lowers) >= 2:
            first, last = lowers[0], lowers[-1]
            for made in ((first, last), (first[0], last), (last, first), (first, last[0]), (last, first[0])):
                if len("".join(made)) >= _MIN_USER:
                    users.setdefault("".join(made), made)
    hinted = _from_addresses(texts, spans, roles)
    return RecordNames(roles, users, hinted)


def _role(lower: str, place: int, count: int, reverse: bool) -> str:
    lex = load_lexicon()
    if lower in lex.first_names and lower not in lex.last_names:
        return FIRST
    if lower in lex.last_names and lower not in lex.first_names:
        return LAST
    if count == 1:
        return FIRST if lower in lex.first_names or lower not in lex.last_names else LAST
    return FIRST if (place < max(1, count - 1)) != reverse else LAST


def _from_addresses(texts: Sequence[str], spans: Sequence[Sequence[Span]], roles: dict[str, str]) -> frozenset[str]:
    hinted = set()
    for text, group in zip(texts, spans, strict=True):
        for span in group:
            if span.kind != "EMAIL":
                continue
            local = text[span.start : span.end].partition("@")[0].casefold()
            words = [word for word in _LOCAL_PART.split(local) if word.isalpha() and len(word) > 2]
            if len(words) == 2 and not any(word in load_lexicon().common for word in words):
                for word, role in zip(words, (FIRST, LAST), strict=True):
                    if word not in roles:
                        roles[word] = role
                        hinted.add(word)
    return frozenset(hinted)


def find_names(text: str, names: RecordNames, language: str = "en") -> list[Span]:
    """Where the parts of the names stand in a text, beyond what the detectors found. Linear in the text.

    A part that is a word as well ("Mark", "Will") counts only with a capital letter in the middle of a sentence.
    """
    words = split_words(text)
    result = []
    for i, lower in enumerate(words.lowers):
        if lower in names.user_names or _is_mention(words, i, names):
            result.append(Span(words.starts[i], words.ends[i], "PERSON", 0.5))
        elif words.is_capital(i) and language in CASE_ENDINGS and lower not in load_lexicon().common:
            length = _stem(lower, names, CASE_ENDINGS[language])
            if length:
                result.append(Span(words.starts[i], words.starts[i] + length, "PERSON", 0.5))
    return result


def _stem(lower: str, names: RecordNames, endings: tuple[str, ...]) -> int:
    """How many letters of a word with an ending of its case are to be replaced; 0 where no name stands in it.

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
    lower, lex = words.lowers[i], load_lexicon()
    if lower not in names.roles:
        return "'" in lower and lower.replace("'", "") in names.roles
    if lower in names.from_email:
        return words.is_capital(i)
    return (lower not in lex.common and lower not in lex.ambiguous) or _is_sure(words, i)


def _is_sure(words: Words, i: int) -> bool:
    return words.is_capital(i) and (not words.starts_sentence(i) or _is_called(words, i))


def _is_called(words: Words, i: int) -> bool:
    """Whether a word that may open a sentence ("Will you") stands where a name does: "Will," and "Will Smith"."""
    after = words.text[words.ends[i] : words.ends[i] + 2]
    return (
        after[:1] in (",", "!", "\n", "") or after in ("'s", "’s") or (i + 1 < len(words) and words.is_capital(i + 1))
    )


def find_phone_numbers(text: str, digits: frozenset[str]) -> Iterator[Span]:
    """Where a phone number that was found stands again, in whatever grouping."""
    for match in _DIGITS.finditer(text):
        if re.sub(r"\D", "", match[0]) in digits:
            yield Span(match.start(), match.end(), "PHONE", 0.5)


def find_values(text: str, values: Mapping[str, str]) -> Iterator[Span]:
    """Where a value stands again, letter by letter; values: the value -> its kind."""
    for value, kind in values.items():
        begin = text.find(value)
        while begin >= 0:
            end = begin + len(value)
            if not text[begin - 1 : begin].isalnum() and not text[end : end + 1].isalnum():
                yield Span(begin, end, kind, 0.5)
            begin = text.find(value, end)


def replace_spans(text: str, spans: Sequence[Span], surrogate: Callable[[Span], str]) -> str:
    """The text with every span replaced; the spans are in order and do not overlap."""
    pieces, done = [], 0
    for span in spans:
        pieces += [text[done : span.start], surrogate(span)]
        done = span.end
    return "".join((*pieces, text[done:]))
