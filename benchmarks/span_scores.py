"""Compares the spans that a detector finds with marked values."""

from collections.abc import Collection, Sequence

from marked_texts import Mark, MarkedText

WHOLE, HALF = 1.0, 0.5


def covered_share(text: str, mark: Mark, found: Sequence[Mark]) -> float:
    """Returns the share of the letters and digits of a marked value that lie in the spans that were found."""
    places = [place for place in range(mark.start, mark.end) if text[place].isalnum()]
    covered = sum(any(one.start <= place < one.end for one in found) for place in places)
    return covered / len(places) if places else 1.0


def count_found(
    texts: Sequence[MarkedText], found: Sequence[Sequence[Mark]], kinds: Collection[str], share: float
) -> tuple[int, int]:
    """Counts the marked values of these kinds of which at least this share lies in spans of any kind, and all."""
    right = total = 0
    for text, spans in zip(texts, found, strict=True):
        for mark in text.marks:
            if mark.kind in kinds:
                total += 1
                right += covered_share(text.text, mark, spans) >= share
    return right, total


def count_right(
    texts: Sequence[MarkedText], found: Sequence[Sequence[Mark]], kinds: Collection[str]
) -> tuple[int, int]:
    """Counts the spans of these kinds that touch a marked value of the same kinds, and all spans of these kinds."""
    right = total = 0
    for text, spans in zip(texts, found, strict=True):
        marks = [mark for mark in text.marks if mark.kind in kinds]
        for span in spans:
            if span.kind in kinds:
                total += 1
                right += any(mark.start < span.end and span.start < mark.end for mark in marks)
    return right, total
