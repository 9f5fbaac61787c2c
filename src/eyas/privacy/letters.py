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

from collections.abc import Iterator

from eyas.privacy.dictionary import is_known
from eyas.privacy.labels import ValueMatcher
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import PARTICLES, Lexicon, read_words
from eyas.privacy.words import TITLES

_PATTERNS = load_patterns("letters")
_EXACT = _PATTERNS.exact
_GREETING, _HEADER = "greeting", "header"
_LINES = (_GREETING, "closing", _HEADER, "reply", "line_of_chat")
_GROUP_ADDRESSEES = read_words("group_addressees")


def find_letter_names(text: str, matcher: ValueMatcher) -> Iterator[Span]:
    """Yields the names in greetings, closings, headers and lines such as "Anna wrote:". Takes linear time."""
    for line in _LINES:
        for match in _PATTERNS.find(text, line):
            start, end = match.span(match.lastindex or 1)
            sure = line == _GREETING or text.startswith("<", match.end())  # a mail address follows
            in_header = line == _HEADER and not sure
            for both in (*_EXACT["and"].finditer(text, start, end), None):
                stop = both.start() if both else end
                name = _find_name(text, start, stop)
                if name is not None and _is_name(text[name:stop], matcher, sure, in_header):
                    yield Span(name, stop, "PERSON", 0.8, "builtin.letter")
                start = both.end() if both else end


def find_user_names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Yields the spans of user names that consist of two names: "user=anna.schmidt"."""
    for match in _PATTERNS.find(text, "user_name"):
        first, last = match[1].casefold(), match[2].casefold()
        if first in lexicon.sure_names or (
            match[0][-len(last) - 1] == "." and lexicon.common.isdisjoint((first, last))
        ):
            yield Span(match.start(1), match.end(2), "PERSON", 0.7, "builtin.field")


def _find_name(text: str, start: int, end: int) -> int | None:
    """Returns the position where a name starts in text[start:end], after its titles: "Dr. Anna" -> position of "Anna".

    Returns None if the words name no single person: "Dear all".
    """
    words = list(_EXACT["single_word"].finditer(text, start, end))
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
    lexicon, lowers = matcher.lexicon, [word.casefold() for word in _EXACT["single_word"].findall(value)]
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
