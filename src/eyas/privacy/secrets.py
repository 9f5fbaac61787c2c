"""Finds secrets: API keys and private keys by their known formats, passwords and tokens by the labels before them.

The labels are names such as "password", "token" and "api_key" (labeled_values.py). Every pattern takes linear time: its
repeats are bounded, possessive, or begin only at the edge of a word.
"""

import importlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from eyas.privacy.dictionary import is_known
from eyas.privacy.labeled_values import find_labels, label_before
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span, split_windows
from eyas.privacy.word_lists import load_lexicon, read_data_file

_FORMS = load_patterns("secret_forms")
_NAMED = load_patterns("named_secrets")

_REACH = 120  # characters between a token and a word such as "password" or "account"
_REACH_OF_HASH = 40  # characters before a hash in which its label stands
_MIN_CHANGES = 6  # between lower case, capitals and digits in a random password
_TRAILING = ".,;:!?)]}>*"
_CLOSING = ".,;:)]}>*"  # a password may end with an exclamation mark
_PLUGIN_WINDOW, _PLUGIN_OVERLAP = 2_000, 300  # characters that a plugin reads at a time; its keys are shorter


def find_secrets(text: str) -> Iterator[Span]:
    """Yields the spans of secrets in a text.

    Three searches find them:
        formats: known key formats, such as "ghp_..." of GitHub, and blocks "-----BEGIN ... PRIVATE KEY".
        names: a value after a word for a secret: "password: hunter2" -> span of "hunter2".
        plugins: the detectors of the package detect-secrets for the formats of further services.
    """
    for match in _FORMS.find(text, *_FORMS, *_FORMS.others):
        yield Span(*match.span(), "SECRET")
    yield from _find_named(text)
    yield from _find_by_plugins(text)


def _find_named(text: str) -> Iterator[Span]:
    labels = [label for label in find_labels(text) if label.kind in ("SECRET", "KEY", "PHRASE")]
    for label in labels:
        phrase = _NAMED["phrase"].match(text, label.end) if label.kind == "PHRASE" else None
        if phrase:
            yield Span(*phrase.span("value"), "SECRET", 0.8, "builtin.label")
        yield from _find_after(text, label.end, label.kind == "KEY")
    made_up = [match for match in _NAMED["token"].finditer(text) if _is_made_up(match[0].rstrip(_CLOSING))]
    logins = (match.start() for match in _NAMED.find(text, "login")) if made_up else ()
    hints = sorted([*(label.start for label in labels), *logins])
    for match in made_up if hints else ():
        value = match[0].rstrip(_CLOSING)
        if _is_beside_hint(text, *match.span(), hints) and not _is_hash(text, match.start(), value):
            yield Span(match.start(), match.start() + len(value), "SECRET", 0.6, "builtin.token")


def _find_after(text: str, start: int, is_soft: bool) -> Iterator[Span]:
    """Yields the secret after a label that ends at `start`. is_soft: the label often means something else ("key")."""
    if match := _NAMED["assigned"].match(text, start):
        is_quoted = bool(match["quote"])
        value = match["value"] if is_quoted else match["value"].rstrip(_TRAILING)
        is_last = not is_soft and bool(_NAMED["line_end"].match(text, match.end()))
        if _is_value(value, is_quoted, is_soft, match["sign"] == ":") or (is_last and _is_odd_word(value)):
            yield _span_of(match, value, 0.9)
    if match := _NAMED["said"].match(text, start):
        value = match["value"].rstrip(_TRAILING)
        is_code = _NAMED["code_value"].match(value) or (is_soft and _NAMED["name_of_variable"].match(value))
        is_empty = _NAMED["no_value"].match(value) and not _is_likely_password(value)
        is_secret = _is_password(value) or (match["quote"] and not is_soft and _is_odd_word(value))
        if len(value) >= 4 and is_secret and not (is_code or is_empty):
            yield _span_of(match, value, 0.7)
    if match := _NAMED["beside"].match(text, start):
        value = match["value"].rstrip(_TRAILING)
        num_digits = sum(map(str.isdigit, value))
        is_mixed = not is_soft and value.isalnum() and 2 <= num_digits < len(value) and len(value) >= 7
        if (_is_likely_password(value) or is_mixed) and not _NAMED["code_value"].match(value):
            yield _span_of(match, value, 0.6)
    is_password = not is_soft and _NAMED["password"].search(text, max(0, start - 12), start)
    match = _NAMED["word_said"].match(text, start) if is_password else None
    if match and not _NAMED["no_value"].match(match["value"]):
        yield _span_of(match, match["value"], 0.5)


def _span_of(match: re.Match[str], value: str, score: float) -> Span:
    return Span(match.start("value"), match.start("value") + len(value), "SECRET", score, "builtin.label")


def _is_beside_hint(text: str, start: int, end: int, hints: Sequence[int]) -> bool:
    """Returns True if a word such as "password" or "account" stands near a token, in the same line.

    Args:
        text: The text.
        start: The start of the token.
        end: The end of the token.
        hints: The positions of those words, in order.
    """
    first = max(text.rfind("\n", 0, start) + 1, start - _REACH)
    line_end = text.find("\n", end, end + _REACH)
    k = bisect_left(hints, first)
    return k < len(hints) and hints[k] < (line_end if line_end >= 0 else end + _REACH)


def _is_hash(text: str, start: int, value: str) -> bool:
    """Returns True for hexadecimal digits behind a label such as "md5" or "commit"."""
    label = label_before(text, start, _REACH_OF_HASH) if _NAMED["hexadecimal"].fullmatch(value) else None
    return label is not None and label.kind == "OTHER"


def _is_made_up(value: str) -> bool:
    """Returns True if no word, number or name in prose looks like the value, so that it needs no label.

    Such are "Kobalt77!", "l0vem0?78", "8RvrrPGi9IeWmV4", and "mofane-riti-83" if no dictionary has its words.
    """
    if value.isalpha() and value[1:].islower():
        return False  # most words
    if _NAMED["words_and_number"].match(value):
        words = _NAMED["letters"].findall(value.casefold())
        return not any(word in load_lexicon().common or is_known(word, "en") for word in words)
    if value.isalnum() and value.isascii():
        if _NAMED["joined_words"].fullmatch(value):
            return False
        kinds = [(char.isdigit(), char.isupper()) for char in value]
        return sum(a != b for a, b in pairwise(kinds)) >= _MIN_CHANGES
    return not _NAMED["marks_of_code"].search(value) and _is_likely_password(value)


def _is_value(value: str, is_quoted: bool, is_soft: bool, has_colon: bool) -> bool:
    """Returns True if the value after "password =" is a secret; False if it is program code or prose.

    Args:
        value: The characters after the sign (":", "=" or an arrow).
        is_quoted: The value stands in quotation marks.
        is_soft: The word before the sign often means something else than a secret, such as "key".
        has_colon: The sign is a colon, which prose has as well: "The password: it must be long".
    """
    if len(value) < 4 or value[0] in "<$%{[(" or _NAMED["rule_for_passwords"].search(value):
        return False
    is_password = _is_password(value)
    if (_NAMED["no_value"].match(value) and not is_password) or (is_soft and _NAMED["name_of_variable"].match(value)):
        return False
    if is_quoted:
        return not is_soft or (len(value) >= 6 and (is_password or len(value) >= 8) and not value.endswith("_"))
    if _NAMED["code_value"].match(value):
        return False
    if has_colon or is_soft:
        return len(value) >= 5 and is_password
    return is_password or not any(char in value for char in "(){}[]<>;,")


def _is_odd_word(value: str) -> bool:
    """Returns True for an uncommon word of letters, such as "hunterwolf". Alone after "password:", it is a secret."""
    word = value.replace("-", "").replace("_", "")
    if not 6 <= len(word) <= 40 or not word.isalpha() or _NAMED["no_value"].match(value):
        return False
    return word.casefold() not in load_lexicon().common


def _is_password(value: str) -> bool:
    """Returns True if the value looks like a password and not like a word of prose.

    It has letters with a digit, with a punctuation mark or with capitals inside, or it has at least six digits.
    """
    if _NAMED["rule_for_passwords"].search(value):
        return False
    if not any(map(str.isalpha, value)):
        return value.isdigit() and len(value) >= 6
    if any(char.isdigit() or (not char.isalnum() and char not in "'’.,-/_()") for char in value):
        return True
    return len(value) >= 8 and any(a.islower() and b.isupper() for a, b in pairwise(value))


def _is_likely_password(value: str) -> bool:
    """Returns True for letters, digits and a punctuation mark, "l0vem0?78", and for words with a number at the end."""
    if _NAMED["words_and_number"].match(value):
        return True
    has_letters = sum(map(str.isalpha, value)) >= 3
    return has_letters and any(map(str.isdigit, value)) and any(char in "!#%&*+$?^~" for char in value)


@cache
def _load_plugins() -> Sequence[Any]:
    classes = (name.split(".") for name in read_data_file("data/secret_forms")["detectors_of_detect_secrets"].split())
    return [getattr(importlib.import_module(f"detect_secrets.plugins.{file}"), name)() for file, name in classes]


def _find_by_plugins(text: str) -> Iterator[Span]:
    start = 0
    for line in text.split("\n"):
        for offset, window in split_windows(line, _PLUGIN_WINDOW, _PLUGIN_OVERLAP):
            if any(_NAMED["digit"].search(run) for run in _NAMED["key_run"].findall(window)):
                yield from _find_in_line(window, start + offset)
        start += len(line) + 1


def _find_in_line(line: str, start: int) -> Iterator[Span]:
    for plugin in _load_plugins():
        # One search skips most lines; analyze_string returns the values.
        if any(pattern.search(line) for pattern in plugin.denylist):
            for value in filter(None, plugin.analyze_string(line)):
                at = line.find(value)
                end = at + len(value)
                # The plugin for GitHub returns a part of the token: the span ends with the token.
                while end < len(line) and (line[end].isalnum() or line[end] in "_-"):
                    end += 1
                if at >= 0:
                    yield Span(start + at, start + end, "SECRET", 0.9)
