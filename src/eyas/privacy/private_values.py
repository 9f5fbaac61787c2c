"""Finds numbers, codes, dates, user names and streets that the words around them make private, without a known label.

The other detectors know formats and labels. Here a linear model decides, with the shape of the value and the words
around it (context_model.py); its weights are in languages/*/weights/private_values.toml.

    text                                         value        features of its shape
    the keypad by the gate takes 4821            4821         code:9, code:digits:4
    Booked under Fifita, car 4ERW441             4ERW441      code:9A9, code:digits:4, code:letters:3
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from eyas.privacy.context_model import FeatureWeights, load_weights, split_context
from eyas.privacy.documentation_values import is_documentation
from eyas.privacy.labeled_values import is_direct, label_before
from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import KINDS, Span
from eyas.privacy.word_lists import read_words

THRESHOLDS = {"code": 1.0, "odd": -1.4}  # logarithm of the odds from which on a value is private, by its form
_THRESHOLD = 0.6  # of the other forms
_REACH = 30  # characters before a value in which a label such as "order number" says that it is not private
_PATTERNS, _DATES = load_patterns("private_values"), load_patterns("labeled_values")
_STREETS = (_PATTERNS["street_and_number"], _PATTERNS["number_and_street"])
_EDGES = "\"'()[]{}<>,.;:!?*#_~`|"
_GAPS = frozenset(("", " ", "-", ".", "/", ":", " - ", "·"))  # between two chunks of a code
_EDGES_OF_CELLS = ",;|\t\n"
_MAX_CHUNKS, _MAX_CAPITALS = 8, 4
_MIN_DIGITS = 3
_MIN_ODD, _MAX_ODD = 6, 40  # characters
_BRANDS = frozenset(brand.replace(" ", "") for brand in read_words("brands"))
_SHAPE = 12  # characters of a shape
_MAX_COUNTED = 17  # digits


class Value(NamedTuple):
    """A value that may be private: its position, and "date", "handle", "street", "odd" (like a password) or "code"."""

    start: int
    end: int
    form: str


def find_candidates(text: str) -> list[Value]:
    """Returns the values of a text that may be private, in order. Takes linear time."""
    found = [Value(*match.span(), "date") for match in _DATES.find(text, "any_date")]
    for match in _PATTERNS["handle"].finditer(text) if "@" in text else ():
        if not match[0].isupper() and match[0][1:].rstrip(".").casefold() not in _BRANDS:
            found.append(Value(*match.span(), "handle"))
    for match in _PATTERNS["odd"].finditer(text):
        value = match[0].lstrip(_EDGES)
        start, value = match.end() - len(value), value.rstrip(_EDGES)
        if _MIN_ODD <= len(value) <= _MAX_ODD and _PATTERNS["odd_signs"].match(value) and not value.isalnum():
            found.append(Value(start, start + len(value), "odd"))
    if any(map(str.isdigit, text)):
        found += _find_codes(text)
        found += [Value(*match.span(), "street") for start, end in _lines_with_digits(text) for pattern in _STREETS
                  for match in pattern.finditer(text, start, end)]  # fmt: skip
    kept: list[Value] = []
    for start, end, form in sorted(found, key=lambda one: (one.start, -one.end)):
        is_ordinary = form in ("code", "odd", "street") and _PATTERNS["ordinary"].match(text, start, end)
        if not is_ordinary and (not kept or start >= kept[-1].end):
            kept.append(Value(start, end, form))
    return kept


def _lines_with_digits(text: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each line that holds a digit: no street reaches over a line."""
    done = 0
    while digit := _PATTERNS["digit"].search(text, done):
        start, end = text.rfind("\n", done, digit.start()) + 1, text.find("\n", digit.end())
        done = len(text) if end < 0 else end
        yield start, done


def _find_codes(text: str) -> Iterator[Value]:
    """Yields runs of chunks with digits or capitals: "PW 6193 1381", "4ERW441"."""
    start = end = num_chunks = num_digits = 0
    for match in _PATTERNS["chunk"].finditer(text):
        digits, is_part = _count_digits(match[0])
        if num_chunks and (not is_part or num_chunks == _MAX_CHUNKS or text[end : match.start()] not in _GAPS):
            if num_digits >= _MIN_DIGITS:
                yield Value(start, end, "code")
            num_chunks = num_digits = 0
        if is_part:
            start = start if num_chunks else match.start()
            end, num_chunks, num_digits = match.end(), num_chunks + 1, num_digits + digits
    if num_digits >= _MIN_DIGITS:
        yield Value(start, end, "code")


@lru_cache(maxsize=100_000)
def _count_digits(chunk: str) -> tuple[int, bool]:
    """Returns the number of digits in a chunk, and whether it may be a part of a code."""
    digits = sum(map(str.isdigit, chunk))
    return digits, digits > 0 or (chunk.isupper() and len(chunk) <= _MAX_CAPITALS)


@lru_cache(maxsize=10_000)
def shape_features(written: str, form: str) -> Sequence[str]:
    """Returns the features of a value without the words around it.

    Args:
        written: The value.
        form: Its form, see Value.
    """
    shape = "".join("9" if char.isdigit() else "A" if char.isupper() else "a" if char.isalpha() else char
                    for char in written).replace(" ", "_")  # fmt: skip
    found = list[str]()
    for word in _PATTERNS["word"].findall(written.casefold()) if form == "street" else ():
        found += (f"in:{word}", f"in:{word[:4]}*", f"in:*{word[-4:]}", f"in:*{word[-3:]}")
    num_digits, short = min(shape.count("9"), _MAX_COUNTED), _PATTERNS["run"].sub(r"\1", shape)
    found += (f"form:{form}", f"{form}:{short[:_SHAPE]}", f"shape:{shape[: 2 * _SHAPE]}")
    found += (f"{form}:digits:{num_digits}", f"{form}:letters:{min(sum(map(str.isalpha, shape)), _SHAPE)}")
    if written.isdigit():
        found.append(f"number:{num_digits}")
        found += ["number:round"] if written.endswith("00") else []
    if year := _PATTERNS["year"].search(written) if form == "date" or len(written) == 4 else None:
        found.append(f"{form}:year:{year[0][:3]}")
    return found


def find_private_values(text: str, known: Sequence[Span], language: str) -> Iterator[Span]:
    """Yields the spans of private values. A value that drops the record is a SECRET, another number a CUSTOMER_ID.

    Args:
        text: The text, with plain characters (`plain_text`).
        known: The spans that other detectors found in the text, in order. Only names and places may lie in a value.
        language: The language of the text (ISO 639-1).
    """
    taken = [span for span in known if span.kind not in ("PERSON", "LOCATION")]
    ends = [span.end for span in taken]
    values = [value for value in find_candidates(text)
              if (k := bisect_right(ends, value.start)) == len(taken) or taken[k].start >= value.end]  # fmt: skip
    if not values:
        return
    context = split_context(text, tuple((span.start, span.end) for span in known if span.kind == "PERSON"), language)
    private, dropped = map(load_weights(language, "private_values").__getitem__, ("private", "dropped"))
    for start, end, form in values:
        is_cell = text[start - 1 : start] in _EDGES_OF_CELLS and text[end : end + 1] in _EDGES_OF_CELLS
        if form == "code" and is_cell:
            continue  # the heading of a column says what its cells are, see structured_text.py
        if text[start - 1 : start] == "(" and text[max(0, start - 2) : start - 1].isalnum():
            continue  # an argument of a call: "multiply(148, 412)"
        shape = shape_features(text[start:end], form)
        score = context.score(start, end, private) + _add(shape, private)
        if score > THRESHOLDS.get(form, _THRESHOLD) and not _is_public(text, start, end):
            kind = {"date": "BIRTH_DATE", "handle": "HANDLE", "odd": "SECRET", "street": "ADDRESS"}.get(form)
            is_dropped = kind is None and context.score(start, end, dropped) + _add(shape, dropped) > 0
            yield Span(start, end, kind or ("SECRET" if is_dropped else "CUSTOMER_ID"), 0.5, "builtin.context")


def _is_public(text: str, start: int, end: int) -> bool:
    """Returns True for a value of public documentation, and behind a label such as "order number"."""
    label = label_before(text, start, _REACH)
    is_other = label is not None and label.kind == "OTHER" and is_direct(text, label.end, start)
    return is_other or any(is_documentation(kind, text[start:end]) for kind in KINDS)


def _add(features: Iterable[str], weights: FeatureWeights) -> float:
    return weights["bias"] + sum(weights.get(feature, 0.0) for feature in features)
