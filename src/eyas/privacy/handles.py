"""Finds user names in social media beside a person: "My friend Tina (@tinawall7)".

labeled_values.py finds those after a label: "IG: tinawall7".
"""

import re
from collections.abc import Iterator

from eyas.privacy.span import Span
from eyas.privacy.word_lists import load_lexicon, read_words

_MENTION = re.compile(r"(?<![^\s(,;:\"'/])@(?P<name>[A-Za-z_](?:[\w.]{1,28})\w)(?![\w/(:@{<]|\.\w)")
_BRANDS = frozenset(brand.replace(" ", "") for brand in read_words("brands"))
_CODE = re.compile(r"```|\bdef \w+\(|\bclass \w+[:({]|\bimport |[{};]\s*\n|</\w+>|\n[ \t]*@\w")


def find_handles(text: str) -> Iterator[Span]:
    """Yields the spans of mentions such as "@tinawall7". A word, a brand and program code are none.

    Args:
        text: The text, with plain characters (`plain_text`). Requirement: it is about a person.
    """
    if "@" not in text or _CODE.search(text):
        return
    for match in _MENTION.finditer(text):
        name = match["name"].casefold()
        if name not in load_lexicon().common and name not in _BRANDS:
            yield Span(*match.span(), "HANDLE", 0.6, "builtin.mention")
