"""Finds names of people in user names: "user=anna.schmidt".

labeled_values.py finds user names after a label: "IG: tinawall7".
"""

from collections.abc import Iterator

from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.word_lists import Lexicon

_PATTERNS = load_patterns("handles")


def find_user_names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Yields the spans of user names that consist of two names: "user=anna.schmidt"."""
    for match in _PATTERNS.find(text, "user_name"):
        first, last = match[1].casefold(), match[3].casefold()
        if first in lexicon.sure_names or (match[2] == "." and lexicon.common.isdisjoint((first, last))):
            yield Span(match.start(1), match.end(), "PERSON", 0.7, "builtin.field")
