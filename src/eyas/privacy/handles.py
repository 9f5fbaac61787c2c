"""Finds user names in social media beside a person, "My friend Tina (@tinawall7)", and names in "user=anna.schmidt".

labeled_values.py finds user names after a label: "IG: tinawall7".
"""

from collections.abc import Iterator

from eyas.privacy.patterns import load_patterns
from eyas.privacy.span import Span
from eyas.privacy.value_labels import find_labels
from eyas.privacy.word_lists import Lexicon, load_lexicon, read_words

_PATTERNS = load_patterns("handles")
_BRANDS = frozenset(brand.replace(" ", "") for brand in read_words("brands"))


def find_handles(text: str, is_personal: bool) -> Iterator[Span]:
    """Yields the spans of mentions such as "@tinawall7". A word, a brand and program code are none.

    Args:
        text: The text, with plain characters (`plain_text`).
        is_personal: The text is about a person. In other texts, a name of letters only stays, and there must be a word
            such as "Instagram".
    """
    is_about_handles = is_personal or any(label.kind == "HANDLE" for label in find_labels(text))
    if "@" not in text or not is_about_handles or _PATTERNS.exact["code"].search(text):
        return
    for match in _PATTERNS.exact["mention"].finditer(text):
        name = match["name"].casefold()
        if (is_personal or not name.isalpha()) and name not in load_lexicon().common and name not in _BRANDS:
            yield Span(*match.span(), "HANDLE", 0.6, "builtin.mention")


def find_user_names(text: str, lexicon: Lexicon) -> Iterator[Span]:
    """Yields the spans of user names that consist of two names: "user=anna.schmidt"."""
    for match in _PATTERNS.find(text, "user_name"):
        first, last = match[1].casefold(), match[3].casefold()
        if first in lexicon.sure_names or (match[2] == "." and lexicon.common.isdisjoint((first, last))):
            yield Span(match.start(1), match.end(), "PERSON", 0.7, "builtin.field")
