"""Finds secrets: API keys and private keys by their known formats, passwords and tokens by the labels before them.

The labels are names such as "password", "token" and "api_key" (value_labels.py). Every pattern takes linear time: its
repeats are bounded, possessive, or begin only at the edge of a word.
"""

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern
from eyas.privacy.labeled_values import COPULAS
from eyas.privacy.span import Span, split_windows
from eyas.privacy.value_labels import find_labels, label_before, labels_before
from eyas.privacy.word_lists import any_of, load_lexicon, read_data_file

_FORMS = read_data_file("data/secret_forms")
_PATTERNS = (
    re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_FORMS['services'].values())})"),
    *(re.compile(pattern) for pattern in _FORMS["exact"].values()),
    *(CaseInsensitivePattern(pattern) for pattern in _FORMS["any_case"].values()),
    *(PrefilteredPattern(row["pattern"], row["test"]) for row in _FORMS["tested"].values()),
)
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK-----|-----)?|PuTTY-User-Key-File-\d:")
_MAX_KEY_BLOCK = 20_000  # characters between the begin and the end of a key

# After `password =` in code that gives none away.
_NON_SECRETS = any_of("non_secrets").replace(r"\*", r"\w*")
_NO_VALUE = re.compile(rf"(?i)(?:(?:{_NON_SECRETS})(?![^\W_])|\.\.\.|\*{{2,}}|<|\$|\{{\{{|%\(|%s|\[)")
_CHAR = (
    r"[^\s\"'`\u0900-\u097f\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # of a password; no letter of Chinese and the like
)
# From the end of a label on: `_prod="abc"`, ` for the router is abc`, ` Abc#12`.
_ASSIGNED = re.compile(
    r"[\w-]{0,24}[\"'`\]*]{0,3}(?:\s{0,3}:\s{0,3}(?:str|string|String|bytes))?\s{0,3}(?P<sign>:=|=>|->|=(?!=)|:(?![:/]))"
    r"\s{0,3}(?:[bru]{1,2}(?=[\"']))?(?P<quote>[\"'`]{0,3})(?P<value>"
    rf"{_CHAR}{{3,500}})"
)
_SAID = re.compile(
    rf"(?i)[^\n:=]{{0,40}}?(?:{COPULAS}|:|=|->|→| - |,)[ :]{{0,3}}"
    rf"(?P<quote>[\"'`*]{{0,3}})(?P<value>{_CHAR}{{4,200}})"
)
_BESIDE = re.compile(rf"[ (\"'`\[]{{1,3}}(?P<value>{_CHAR}{{7,100}})")
_PASSWORD = re.compile(r"(?i)pass|kennw|contras|senha|palavra|parola|wachtw|has[łl]|l[öo]sen|парол")
# "my password is sunshine." at the end of a clause
_WORD_SAID = re.compile(
    rf"(?i)[ \"'`]{{0,2}}(?:{COPULAS}|:)[ :\"'`]{{1,3}}(?P<value>[^\W\d_]{{5,30}})(?=[\"'`]?(?:[.,;!)]|\s*(?:\n|\Z)))"
)
_PHRASE = re.compile(
    rf"(?i)[^\n:=]{{0,20}}(?::|=|{COPULAS})\s{{0,3}}[\"'`]?(?P<value>[a-z]{{3,12}}(?:[ -][a-z]{{3,12}}){{3,24}})"
)
_TOKEN = re.compile(
    r"(?<![^\s\"'`:(«“”„『「（はがはを가는은])[^\s\"'`()«»“”„\[\]{}<>|\\=/\u3000-\uffef]{7,64}(?![^\s\"'`)»”“、。」』）\u3040-\u30ff\uac00-\ud7af])"
)
_WORDS_AND_NUMBER = re.compile(r"[A-Za-z]{3,10}(?:[-_.][A-Za-z]{3,10}){1,3}[-_.]\d{2,4}\Z")
_RANDOM = re.compile(r"(?<![A-Za-z0-9+/_.-])[A-Za-z0-9+/_=.~-]{16,300}(?![A-Za-z0-9+/_-])")
_REACH, _REACH_BEHIND = 60, 30  # characters between a label and a token
_RULE = re.compile(r"\(\?|\[(?:A-Z|a-z|0-9)|\\[dw]")  # a rule for passwords
_DIGIT = re.compile(r"[0-9]")
_LINE_END = re.compile(r"[\"'`]?[ \t.,;]{0,3}(?:\n|\Z)")
_TRAILING = ".,;:!?)]}>*"
_NAME = re.compile(r"(?i)[a-z_]*(?:key|token|secret|pass|pwd|cookie|cred)[a-z_]*\Z")  # of a variable
_CALL = re.compile(r"[A-Za-z_][\w.]*[({\[]")
_CODE_VALUE = re.compile(r"[A-Za-z_][\w.]*[\[({]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
_PLUGIN_WINDOW, _PLUGIN_OVERLAP = 2_000, 300  # characters that a plugin reads at a time; its keys are shorter
_KEY_RUN = re.compile(r"[A-Za-z0-9_./+-]{16,}")  # every form of a plugin holds one with a digit in it


def find_secrets(text: str) -> Iterator[Span]:
    """Yields the spans of secrets in a text.

    Three searches find them:
        formats: known key formats, such as "ghp_..." of GitHub, and blocks "-----BEGIN ... PRIVATE KEY".
        names: a value after a word for a secret: "password: hunter2" -> span of "hunter2".
        plugins: the detectors of the package detect-secrets for the formats of further services.
    """
    if "PRIVATE KEY" in text or "PuTTY" in text:
        yield from _find_key_blocks(text)
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            yield Span(match.start(), match.end(), "SECRET")
    yield from _find_named(text)
    yield from _find_by_plugins(text)


def _find_key_blocks(text: str) -> Iterator[Span]:
    done = 0
    for match in _KEY_BEGIN.finditer(text):
        if match.start() >= done:
            done = min(len(text), match.end() + _MAX_KEY_BLOCK)
            end = text.find("-----END", match.end(), done)
            line_end = text.find("\n", end) if end >= 0 else done
            done = line_end if line_end >= 0 else len(text)
            yield Span(match.start(), done, "SECRET")


def _find_named(text: str) -> Iterator[Span]:
    labels = [label for label in find_labels(text) if label.kind in ("SECRET", "KEY", "PHRASE")]
    for label in labels:
        is_soft = label.kind == "KEY"
        phrase = _PHRASE.match(text, label.end) if label.kind == "PHRASE" else None
        if phrase:
            yield Span(*phrase.span("value"), "SECRET", 0.8, "builtin.label")
        yield from _find_after(text, label.end, is_soft)
    if not labels:
        return
    for pattern, is_secret in ((_TOKEN, _is_likely_password), (_RANDOM, _is_random)):
        for match in pattern.finditer(text):
            value = match[0].rstrip(_TRAILING)
            if is_secret(value) and _is_beside_label(text, *match.span()):
                yield Span(match.start(), match.start() + len(value), "SECRET", 0.6, "builtin.token")


def _find_after(text: str, start: int, is_soft: bool) -> Iterator[Span]:
    """Yields the secret after a label that ends at `start`. is_soft: the label often means something else ("key")."""
    match = _ASSIGNED.match(text, start)
    if match:
        is_quoted = bool(match["quote"])
        value = match["value"] if is_quoted else match["value"].rstrip(_TRAILING)
        is_last = not is_soft and bool(_LINE_END.match(text, match.end()))
        if _is_value(value, is_quoted, is_soft, match["sign"] == ":") or (is_last and _is_odd_word(value)):
            yield _span_of(match, value, 0.9)
    match = _SAID.match(text, start)
    if match:
        value = match["value"].rstrip(_TRAILING)
        is_code = (
            _CODE_VALUE.match(value)
            or (is_soft and _NAME.match(value))
            or (_NO_VALUE.match(value) and not _is_strong_password(value))
        )
        if len(value) >= 4 and not is_code and (_is_password(value) or (match["quote"] and _is_odd_word(value))):
            yield _span_of(match, value, 0.7)
    match = _BESIDE.match(text, start)
    if match:
        value = match["value"].rstrip(_TRAILING)
        num_digits = sum(map(str.isdigit, value))
        is_mixed = not is_soft and value.isalnum() and 2 <= num_digits < len(value) and len(value) >= 7
        if (_is_strong_password(value) or is_mixed) and not _CODE_VALUE.match(value):
            yield _span_of(match, value, 0.6)
    match = None if is_soft or not _PASSWORD.search(text, max(0, start - 12), start) else _WORD_SAID.match(text, start)
    if match and not _NO_VALUE.match(match["value"]):
        yield _span_of(match, match["value"], 0.5)


def _span_of(match: re.Match[str], value: str, score: float) -> Span:
    return Span(match.start("value"), match.start("value") + len(value), "SECRET", score, "builtin.label")


def _is_beside_label(text: str, start: int, end: int) -> bool:
    """Returns True if a label of a secret stands before or after a token, in the same line and nearer than another."""
    before = label_before(text, start, _REACH, passing=("CONTACT", "EMAIL"))
    if before and before.kind in ("SECRET", "KEY"):
        return "\n" not in text[before.end : start]
    behind = labels_before(text, end + _REACH_BEHIND, _REACH_BEHIND)
    return any(label.kind == "SECRET" and label.start >= end for label in behind)


def _is_value(value: str, is_quoted: bool, is_soft: bool, has_colon: bool) -> bool:
    """Returns True if the value after "password =" is a secret; False if it is program code or prose.

    Args:
        value: The characters after the sign (":", "=" or an arrow).
        is_quoted: The value stands in quotation marks.
        is_soft: The word before the sign often means something else than a secret, such as "key".
        has_colon: The sign is a colon, which prose has as well: "The password: it must be long".
    """
    if len(value) < 4 or value[0] in "<$%{[(" or _RULE.search(value):
        return False
    is_password = _is_password(value)
    if (_NO_VALUE.match(value) and not is_password) or (is_soft and _NAME.match(value)):
        return False
    if is_quoted:
        return not is_soft or (len(value) >= 6 and (is_password or len(value) >= 8) and not value.endswith("_"))
    if _CALL.match(value) or (_CODE_VALUE.match(value) and not _is_random(value)):
        return False
    if has_colon or is_soft:
        return len(value) >= 5 and is_password
    return is_password or not any(char in value for char in "(){}[]<>;,")


def _is_odd_word(value: str) -> bool:
    """Returns True for an uncommon word of letters, such as "hunterwolf". Alone after "password:", it is a secret."""
    word = value.replace("-", "").replace("_", "")
    if not 6 <= len(word) <= 40 or not word.isalpha() or _NO_VALUE.match(value):
        return False
    return word.casefold() not in load_lexicon().common


def _is_password(value: str) -> bool:
    """Returns True if the value looks like a password and not like a word of prose.

    It has letters with a digit, with a punctuation mark or with capitals inside, or it has at least six digits.
    """
    if _RULE.search(value):
        return False
    if not any(map(str.isalpha, value)):
        return value.isdigit() and len(value) >= 6
    if any(char.isdigit() or (not char.isalnum() and char not in "'’.,-/_()") for char in value):
        return True
    return len(value) >= 8 and any(a.islower() and b.isupper() for a, b in pairwise(value))


def _is_strong_password(value: str) -> bool:
    """Returns True if the value has lower-case letters, capitals, digits and punctuation marks, as no word has."""
    tests = (str.islower, str.isupper, str.isdigit, "!#%&*+$?@^~".__contains__)
    return len(value) >= 8 and all(any(map(test, value)) for test in tests)


def _is_likely_password(value: str) -> bool:
    """Returns True beside a word such as "password": for a strong password, "l0vem0?78" or "banefe-tofi-40"."""
    if _is_strong_password(value) or _WORDS_AND_NUMBER.match(value):
        return True
    has_letters = sum(map(str.isalpha, value)) >= 3
    return has_letters and sum(map(str.isdigit, value)) >= 2 and any(char in "!#%&*+$?^~" for char in value)


def _is_random(value: str) -> bool:
    """Returns True for a random key: 16 or more letters and digits, with at least 3 bits of entropy per character.

    A word, a number or a path is not random.
    """
    num_digits = sum(map(str.isdigit, value))
    if len(value) < 16 or num_digits < 3 or not any(map(str.isalpha, value)):
        return False
    if value.count("/") >= 3 or value.count(".") >= 3 or value.count("-") >= 5:
        return False
    return -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values()) >= 3.0


@cache
def _load_plugins() -> Sequence[Any]:
    classes = (name.split(".") for name in _FORMS["detectors_of_detect_secrets"].split())
    return [getattr(importlib.import_module(f"detect_secrets.plugins.{file}"), name)() for file, name in classes]


def _find_by_plugins(text: str) -> Iterator[Span]:
    start = 0
    for line in text.split("\n"):
        for offset, window in split_windows(line, _PLUGIN_WINDOW, _PLUGIN_OVERLAP):
            if any(_DIGIT.search(run) for run in _KEY_RUN.findall(window)):
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
