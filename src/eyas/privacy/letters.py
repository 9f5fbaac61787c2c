"""Finds names in letters, e-mails and chats: in greetings, signatures, headers; and user names made of two names.

    From: <name> <mail>          a header
    Dear <name>,                 a greeting
    ...
    Yours,                       a closing, and the name after it or on the next line
    <name>

    [12/04, 18:22] <name>: ...   a line of a chat

Such a name is found even if no list of names holds it. An ordinary word at the same position is no name: "Dear diary",
"Thanks, Management". In a header, a town or a language is no name either: "From: English".
"""

import re
from collections.abc import Iterator

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern
from eyas.privacy.dictionary import is_known
from eyas.privacy.labels import ValueMatcher
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, Lexicon, any_of, read_words
from eyas.privacy.words import TITLES

_WORD = r"[^\W\d_][^\W\d_'’.-]*(?:['’.-][^\W\d_]*)*"
_WORDS = rf"{_WORD}(?:[ \t](?:&[ \t])?{_WORD}){{0,5}}"
_GREETINGS = any_of("greetings", "greetings_of_letters")
_GREETING = CaseInsensitivePattern(
    rf"^[ \t>]*(?:{_GREETINGS})[ \t,]+({_WORDS})[ \t]*(?=[,:!.\n]|[-–—]\s|$)", re.MULTILINE
)
_CLOSING = CaseInsensitivePattern(
    rf"(?:^|[.!?][ \t]+)[ \t>]*(?:{any_of('closings', 'closings_of_letters')})\b"
    rf"(?:[ \t](?:from|aus|uit|från)[ \t]{_WORD})?[ \t]*[,.!:–-]?"
    rf"[ \t]*(?:\n[ \t>]*\n?[ \t>]*)?(?:--[ \t]*\n)?[-–—]?[ \t]*({_WORDS})[ \t]*\.?[ \t]*(?=[,\n]|$)",
    re.MULTILINE,
)
_HEADER = CaseInsensitivePattern(
    rf"^[ \t>]*(?:{any_of('headers')})[ \t]*:[ \t]*\"?({_WORDS})\"?[ \t]*(?=<|\(|\[|,|;|\n|$)", re.MULTILINE
)
_WROTE = r"wrote|a écrit|escribió|ha scritto|escreveu|schreef|napisał[ao]?|skrev"
_REPLY = PrefilteredPattern(
    rf"(?im)(?:^|[\d,][ \t]+)[ \t>]*({_WORDS})[ \t]+(?:{_WROTE})[ \t]*:"
    rf"|(?:schrieb|schreef|skrev|wrote)[ \t]+({_WORDS})[ \t]*(?::|<)",
    rf"{_WROTE}|schrieb",
)
_CHAT_LINE = re.compile(
    r"(?m)^[ \t]*\[?(?:\d{1,4}[./-]\d{1,2}(?:[./-]\d{1,4})?,?[ \t])?\d{1,2}[:.]\d{2}(?:[:.]\d{2})?"
    rf"(?:[ \t]?[AaPp]\.?[Mm]\.?)?\]?[ \t]*[-–—]?[ \t]*({_WORDS})[ \t]*:(?=[ \t\n])"
)
_GROUP_ADDRESSEES = read_words("group_addressees")
_USER_NAME = CaseInsensitivePattern(
    rf"\b(?:{any_of('labels_of_users')})[\"']?\s?[:=]\s?[\"']?([^\W\d_]{{2,}})[._]([^\W\d_]{{2,}})"
)
_SINGLE_WORD = re.compile(_WORD)
_AND = re.compile(r"[ \t](?:&|and|und|et|y|e|ed|en|i|och)[ \t]", re.IGNORECASE)


def find_letter_names(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the names in greetings, closings, headers and lines such as "Anna wrote:". Takes linear time."""
    for pattern in (_GREETING, _CLOSING, _HEADER, _REPLY, _CHAT_LINE):
        for match in pattern.finditer(text):
            start, end = match.span(match.lastindex or 1)
            sure = pattern is _GREETING or text.startswith("<", match.end())  # a mail address follows
            in_header = pattern is _HEADER and not sure
            for both in (*_AND.finditer(text, start, end), None):
                stop = both.start() if both else end
                name = _find_name(text, start, stop)
                if name is not None and _is_name(text[name:stop], matcher, sure, in_header):
                    yield Span(name, stop, "PERSON", 0.8, "builtin.letter")
                start = both.end() if both else end


def find_user_names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Yields the spans of user names that consist of two names: "user=anna.schmidt"."""
    for match in _USER_NAME.finditer(text):
        first, last = match[1].casefold(), match[2].casefold()
        if first in lexicon.sure_names or (
            match[0][-len(last) - 1] == "." and lexicon.common.isdisjoint((first, last))
        ):
            yield Span(match.start(1), match.end(2), "PERSON", 0.7, "builtin.field")


def _find_name(text: str, start: int, end: int) -> int | None:
    """Returns the position where a name starts in text[start:end], after its titles: "Dr. Anna" -> position of "Anna".

    Returns None if the words name no single person: "Dear all".
    """
    words = list(_SINGLE_WORD.finditer(text, start, end))
    while words and words[0][0].casefold().rstrip(".") in TITLES:
        words = words[1:]
    if not words or any(word[0].casefold() in _GROUP_ADDRESSEES for word in words):
        return None
    return words[0].start()


def _is_name(value: str, matcher: ValueMatcher, sure: bool, in_header: bool) -> bool:
    """Returns True if `value` may be the name of a person.

    Args:
        value: The words after a greeting, a closing or a header.
        matcher: Tests names by their shape and the lexicon.
        sure: The context shows that a name stands here: a greeting, or an e-mail address after the words.
        in_header: The words follow a header such as "From:". A single word there must be a listed name.
    """
    lexicon, lowers = matcher.lexicon, [word.casefold() for word in _SINGLE_WORD.findall(value)]
    first, is_first_name = lowers[0], lowers[0] in lexicon.first_names
    parts = [lower for lower in lowers if lower not in PARTICLES]
    listed = any(lower in lexicon.first_names or lower in lexicon.last_names for lower in parts)
    if in_header and len(lowers) == 1:
        word = first in lexicon.stop or (not is_first_name and (first in lexicon.common or not listed))
        if first in lexicon.cities or (word and is_known(first, matcher.language)):
            return False
    elif in_header:
        listed = is_first_name
    return matcher.is_name(value, sure=listed or sure, any_case=value.islower())
