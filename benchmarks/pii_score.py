"""Whether a planted value survives in what a filter would write.

PERSON      any word of the name of three letters or more, as a whole word, whatever its case. Not counted: words that
            the template itself holds, and particles such as "van der", which any other name may have.
LOCATION    the town as a whole, unless the template itself names it
ADDRESS     street and number
EMAIL       what stands before the @, with the @
IP_ADDRESS  the address as it is written
the others  any run of three quarters of the characters (of keys: at most 40), blanks, hyphens and the like left out
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pii_names import fold
from pii_set import LabeledText, Planted

PARTICLES = frozenset({"van", "der", "den", "von", "del", "dos", "das", "della", "las", "los"})
PUNCTUATION = re.compile(r"[\s\-./()]+")
WORD = re.compile(r"[^\W\d_]+")
MAX_RUN = 40  # the first forty characters of a key or of a token may be the same for all
SHARE_OF_RUN = 0.75


@dataclass(frozen=True)
class Outcome:
    """What became of one text: dropped, or written with these planted values still in it."""

    labeled: LabeledText
    dropped: bool
    changed: bool
    survivors: tuple[Planted, ...]

    @property
    def caught(self) -> bool:
        """Whether no planted value was written."""
        return not self.survivors


def score_text(labeled: LabeledText, written: str | None) -> Outcome:
    """The outcome for a text; `written` is None where the record was dropped."""
    if written is None:
        return Outcome(labeled, True, False, ())
    page = _Page.read(written)
    survivors = tuple(planted for planted in labeled.planted if survives(planted, page, labeled.fixed))
    return Outcome(labeled, False, written != labeled.text, survivors)


def recall(outcomes: Sequence[Outcome]) -> float | None:
    """The share of texts that were caught; None of none."""
    return sum(outcome.caught for outcome in outcomes) / len(outcomes) if outcomes else None


@dataclass(frozen=True)
class _Page:
    """A written text in the forms that are searched."""

    folded: str
    words: frozenset[str]
    squeezed: str

    @staticmethod
    def read(text: str) -> "_Page":
        folded = fold(text)
        return _Page(folded, frozenset(WORD.findall(folded)), PUNCTUATION.sub("", folded))


def survives(planted: Planted, page: _Page, fixed: str) -> bool:
    """Whether the value can still be read. `fixed` is what the template itself says."""
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
    """Whether the words of the phrase stand in the text in this order, whatever is between them."""
    words = re.findall(r"\w+", phrase)
    return re.search(r"(?<!\w)" + r"[\W_]*".join(map(re.escape, words)) + r"(?!\w)", text) is not None
