"""Decides if a planted value survives in the output of a filter. A value survives if the output contains:

PERSON      any word of the name with three letters or more, as a whole word in any case. Words of the template do not
            count, nor do particles such as "van der", which other names may have.
LOCATION    the whole name of the town, unless the template contains it
ADDRESS     street and number
EMAIL       the part before the @, with the @
IP_ADDRESS  the address as it was written
other       any run of three quarters of the characters (at most 40), without blanks, hyphens and similar characters
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pii_names import fold
from pii_set import LabeledText, Planted

PARTICLES = frozenset({"van", "der", "den", "von", "del", "dos", "das", "della", "las", "los"})
PUNCTUATION = re.compile(r"[\s\-./()]+")
WORD = re.compile(r"[^\W\d_]+")
MAX_RUN = 40  # keys and tokens may share their first characters
SHARE_OF_RUN = 0.75


@dataclass(frozen=True)
class Outcome:
    """The result for one text: dropped, or written with these surviving values."""

    labeled: LabeledText
    dropped: bool
    changed: bool
    survivors: tuple[Planted, ...]

    @property
    def caught(self) -> bool:
        """True if no planted value survives."""
        return not self.survivors


def score_text(labeled: LabeledText, written: str | None) -> Outcome:
    """Scores a text; `written` is None if the record was dropped."""
    if written is None:
        return Outcome(labeled, True, False, ())
    page = _Page.read(written)
    survivors = tuple(planted for planted in labeled.planted if survives(planted, page, labeled.fixed))
    return Outcome(labeled, False, written != labeled.text, survivors)


def recall(outcomes: Sequence[Outcome]) -> float | None:
    """Returns the share of texts without a surviving value; None for an empty list."""
    return sum(outcome.caught for outcome in outcomes) / len(outcomes) if outcomes else None


@dataclass(frozen=True)
class _Page:
    """An output text in the forms that are searched."""

    folded: str
    words: frozenset[str]
    squeezed: str

    @staticmethod
    def read(text: str) -> "_Page":
        folded = fold(text)
        return _Page(folded, frozenset(WORD.findall(folded)), PUNCTUATION.sub("", folded))


def survives(planted: Planted, page: _Page, fixed: str) -> bool:
    """Returns True if the value survives. `fixed` is the text of the template."""
    value = fold(planted.value)
    if planted.kind == "PERSON":
        own = {word for word in WORD.findall(value) if len(word) >= 3} - PARTICLES
        return bool(own & page.words - frozenset(WORD.findall(fold(fixed))))
    if planted.kind == "LOCATION":
        return _stands(value, page.folded) and not _stands(value, fold(fixed))
    if planted.kind == "ADDRESS":
        return _stands(value, page.folded)
    if planted.kind == "EMAIL":
        return re.search(rf"(?<![\w.]){re.escape(value.split('@')[0])}\s*@", page.folded) is not None
    if planted.kind == "IP_ADDRESS":
        return re.search(rf"(?<![\w.:]){re.escape(value)}(?![\w:]|\.\d)", page.folded) is not None
    bare = PUNCTUATION.sub("", value)
    length = min(-int(-SHARE_OF_RUN * len(bare) // 1), MAX_RUN)
    return any(bare[start : start + length] in page.squeezed for start in range(len(bare) - length + 1))


def _stands(phrase: str, text: str) -> bool:
    """Returns True if the text contains the words of the phrase in order, with any punctuation between them."""
    words = re.findall(r"\w+", phrase)
    return re.search(r"(?<!\w)" + r"[\W_]*".join(map(re.escape, words)) + r"(?!\w)", text) is not None
