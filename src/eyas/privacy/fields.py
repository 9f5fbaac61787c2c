"""Fields of a record in a text: JSON, YAML, TOML, INI, XML, forms, key=value in a log. The key says what a value is."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.privacy.labels import MAX_LENGTH, Label, Trust, parse_label
from eyas.privacy.span import Span
from eyas.privacy.value_matcher import ValueMatcher

_MARK = re.compile(r"[:=]")
_KEY_END = " \t\"'`*])”\\"
_KEY = re.compile(r"[^\n,;{}(\[|<>&?!\"'`“:=]*\Z")
_COUNT = re.compile(r"(?<=[^\W\d_])[ _#]{0,2}\d{1,2}\Z")  # "Witness 1"
_QUOTED = re.compile(r"[>=]?\s{0,4}\\?([\"'“`])([^\n\"”`]{1,100}?)\\?(?:\1|”)")
_PLAIN = re.compile(
    r"[>=]?[ \t]{0,12}[*_]{0,2}[ \t]{0,2}([^\n\"'`“,;|<>{}\[\]=:#*]{1,100}?)"
    r"(?=\s+[\w.-]+[\"']?[=:]|&[\w-]+=|\s{2}|[\n,;|<>{}\]*#]|\Z| - | – )"
)
_LAST_COMMA = re.compile(r", ?[^\W\d_][^\W\d_.-]+(?: [^\W\d_]\.?)?(?=[ \t]*(?:\n|\Z))")
_BELOW = re.compile(r"[ \t]*\n[ \t]*([^\n:=|{}\[\]\"]{2,60})(?=\n|\Z)")
_ARRAY = re.compile(r"\s{0,4}\[([^\[\]{}]{2,4000})\]")
_STRING = re.compile(r"[\"']([^\"'\n]{2,60})[\"']")
_TAG = re.compile(r"<([A-Za-zÀ-ÿ][\w:.-]{1,40})(?:\s[^<>]{0,80})?>([^<>\n]{2,100})</")
_ROW = re.compile(r"(?m)^[ \t]*\|?[ \t]*\**([^\n|*]{2,40}?)\**[ \t]*\|[ \t]*([^\n|]{2,100}?)[ \t]*\|?[ \t]*$")
_CODE = ("(", "[", ".", "<", "{", "::", "->")
_NAME_PREFIX = re.compile(r"(?:[^\W\d_][^\W\d_'’.]*(?:['’.][^\W\d_]*)*[ -]?){1,6}")
_NEAR = 3  # fields on each side that say whether a bare "name" is a person's


@dataclass(frozen=True)
class _Field:
    begin: int  # of the value; 0 with end 0 where it does not look like what the key says
    end: int
    label: Label
    whole: bool  # the key is all that stands before the mark


def find_field_values(text: str, look: ValueMatcher) -> Iterator[Span]:
    """Spans of the values of personal fields. Linear in the text."""
    found = list(_fields(text, look))
    for i, field in enumerate(found):
        kind = field.label.kind
        if not field.end or kind in ("", "-"):
            continue
        if kind == "PERSON":
            value = text[field.begin : field.end]
            sure = field.label.trust is Trust.SURE
            if field.label.trust is Trust.ROLE:
                sure = field.whole or " " in value or "." in value or look.has_listed_name(value)
            if not sure and not (field.label.trust is Trust.NAME and field.whole and _among_people(found, i)):
                continue
        if kind in ("LOCATION", "ADDRESS") and not _among_people(found, i):
            continue
        yield Span(field.begin, field.end, kind, 0.8)


def _among_people(found: Sequence[_Field], i: int) -> bool:
    """Whether the fields around field i are a person's more than a thing's."""
    around = [*found[max(0, i - _NEAR) : i], *found[i + 1 : i + 1 + _NEAR]]
    people = sum(
        field.label.kind == ""
        or (
            field.end > 0
            and field.label.kind not in ("-", "LOCATION")
            and not (
                field.label.kind == "PERSON" and field.label.trust is Trust.NAME and found[i].label.kind == "PERSON"
            )
        )
        for field in around
    )
    return people > sum(field.label.is_thing for field in around)


def _fields(text: str, look: ValueMatcher) -> Iterator[_Field]:
    if "</" in text:
        for match in _TAG.finditer(text):
            head = parse_label(match[1].rpartition(":")[2])
            if head is not None:
                yield _judged(text, match.start(2), match.end(2), head, look, quoted=True)
    if "|" in text:
        for match in _ROW.finditer(text):
            head = parse_label(match[1])
            if head is not None and parse_label(match[2]) is None:
                yield _judged(text, match.start(2), match.end(2), head, look, quoted=False)
    for mark in _MARK.finditer(text):
        at = mark.start()
        if at == 0 or text[at - 1] in ":=!/" or text[at + 1 : at + 2] == "/":
            continue
        head, whole = _key(text, at)
        if head is not None:
            yield from _values(text, at + 1, head, whole, look)


def _key(text: str, at: int) -> tuple[Label | None, bool]:
    """The label that ends at the mark, and whether it is all that stands before it: else its last words are tried."""
    counted = text[max(0, at - MAX_LENGTH) : at].rstrip(_KEY_END)
    window = _COUNT.sub("", counted)
    if not window or not (window[-1].isalpha() or window[-1] == ")"):
        return None, False
    match = _KEY.search(window.partition("(")[0].rstrip() if window[-1] == ")" else window)
    key = match[0].strip(" \t\r*_>#•-–$@") if match else ""
    head = parse_label(key)
    if head is not None or " " not in key:
        return head, len(window) == len(counted)
    words = key.split()
    for size in (3, 2, 1):
        if len(words) > size:
            head = parse_label(" ".join(words[-size:]))
            if head is not None:
                return head, False
    return None, False


def _values(text: str, begin: int, head: Label, whole: bool, look: ValueMatcher) -> Iterator[_Field]:
    person = head.kind == "PERSON"
    quoted = _QUOTED.match(text, begin)
    if quoted:
        yield _judged(text, quoted.start(2), quoted.end(2), head, look, quoted=True, whole=whole)
        return
    if person and head.trust is not Trust.NAME and text[begin : begin + 5].lstrip().startswith("["):
        array = _ARRAY.match(text, begin)
        for item in _STRING.finditer(text, array.start(1), array.end(1)) if array else ():
            if look.is_name(item[1]):
                yield _Field(item.start(1), item.end(1), Label("PERSON"), True)
        return
    plain = _PLAIN.match(text, begin)
    if plain:
        end = plain.end(1)
        if person and " " not in plain[1].strip():
            comma = _LAST_COMMA.match(text, end)  # "Fifita, Tevita"
            if comma and look.is_name(text[plain.start(1) : comma.end()]):
                end = comma.end()
        if not text.startswith(_CODE, end) or head.kind != "PERSON":
            yield _judged(text, plain.start(1), end, head, look, quoted=False, whole=whole)
        return
    below = _BELOW.match(text, begin)
    if below and (not person or head.trust is not Trust.NAME):
        yield _judged(text, below.start(1), below.end(1), head, look, quoted=False, whole=whole)


def _judged(
    text: str, begin: int, end: int, head: Label, look: ValueMatcher, quoted: bool, whole: bool = True
) -> _Field:
    """The field, with the value's place where it looks like what the key says."""
    while begin < end and text[begin] in " \t\r\u00a0*_":
        begin += 1
    while end > begin and text[end - 1] in " \t\r\u00a0*_.":
        end -= 1
    value = text[begin:end]
    sure = head.trust is Trust.SURE
    nothing = _Field(0, 0, head, whole)
    if not value or (head.kind in ("", "-")):
        return nothing
    if head.kind != "PERSON":
        return _Field(begin, end, head, whole) if look.matches(head.kind, value) else nothing
    if parse_label(value) is not None:  # "customer: Customer", a type
        return nothing
    closed = text[end : end + 1] not in ("(", "[", "<", ";", ".") or quoted
    if closed and look.is_name(value, sure, any_case=quoted or (sure and whole)):
        return _Field(begin, end, head, whole)
    if not quoted and len(value) > 3:
        prefix = _prefix(value, look, sure)
        if prefix:
            return _Field(begin, begin + prefix, head, whole)
    return nothing


def _prefix(value: str, look: ValueMatcher, sure: bool) -> int:
    """How many characters at the start of a longer value are a name: "Tevita Fifita called today"."""
    words = value.split(" ")[:6]
    for size in range(min(4, len(words) - 1), 1, -1):
        name = " ".join(words[:size]).rstrip(".")
        if look.is_name(name, sure) and words[size][:1].islower() != words[size - 1][:1].islower():
            return len(name)
    return 0
