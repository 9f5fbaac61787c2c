"""Loads the regular expressions of the detectors, which are entries of data/*.toml.

    [parts]      a text that other entries hold as {NAME}
    [exact]      case counts
    [any_case]   case does not count; searched only in texts that match the pattern in lower case
    [tested]     searched only in texts that match the test, which is a faster pattern, in lower case

A list is joined to one text. {SECTION} stands for any entry of another section, {any:TABLE} for any entry of a table of
the language folders. {words:TABLE} are whole words, {stems:TABLE} are those with a star at the end of a stem,
{endings:TABLE} is the same inside longer words, {title:TABLE} begin with capitals. A plus sign joins two tables.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.word_lists import any_of, read_data_file, words_of

_PLACE = re.compile(r"\{(?:([a-z]+):)?([A-Za-z_][A-Za-z_+]*)\}")
_PART = re.compile(r"\\.|\(\?P|.", re.DOTALL)  # an escape, a group's name, a character
_SECTIONS = ("parts", "exact", "any_case")
_TABLES: Mapping[str, Callable[..., str]] = {
    "any": any_of,
    "words": words_of,
    "endings": lambda *tables: any_of(*tables).replace(r"\*", r"\w*"),
    "stems": lambda *tables: words_of(*tables).replace(r"\*", r"[^\W\d_]*"),
    "title": lambda *tables: any_of(*tables).title(),
}


class PrefilteredPattern:
    """A pattern that is searched only in texts that contain a second, faster pattern: the test.

    Requirement: every match of the pattern contains a match of the test. The test is searched in the text in lower
    case: for a pattern in lower case, Python's `re` skips most alternatives by their first letter. Most texts match
    nothing, so this first search is all that runs. So a pattern that ignores case is its own test; it has no (?i), and
    no case-sensitive group, such as (?-i:A), inside a negative lookaround.
    """

    def __init__(self, exact: str, test: str, flags: int) -> None:
        """Compiles both patterns.

        Args:
            exact: The pattern whose matches are returned.
            test: The fast pattern. Its letters are converted to lower case.
            flags: Flags of `re` for the pattern.
        """
        self._exact = re.compile(exact, flags)
        self._test = re.compile(_PART.sub(lambda part: part[0] if part[0][0] in "\\(" else part[0].lower(), test))

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        """Yields the matches, as re.Pattern.finditer does."""
        return self._exact.finditer(text) if self._test.search(lower_text(text)) else iter(())


class Patterns(dict[str, re.Pattern[str]]):
    """The patterns of one file: those that respect case by name, and `others`, which are only searched by `find`."""

    others: dict[str, PrefilteredPattern]

    def find(self, text: str, *names: str) -> Iterator[re.Match[str]]:
        """Yields the matches of these patterns, one pattern after another."""
        for name in names:
            yield from (self.get(name) or self.others[name]).finditer(text)


@cache
def load_patterns(name: str) -> Patterns:
    """Returns the patterns of data/NAME.toml."""
    tables, parts = read_data_file(f"data/{name}"), read_parts(name)
    exact, any_case, tested = (tables.get(section, {}) for section in ("exact", "any_case", "tested"))
    found = Patterns({key: re.compile(fill_parts(text, parts)) for key, text in exact.items()})
    rows = {key: {"pattern": text, "test": text, "flags": re.IGNORECASE} for key, text in any_case.items()} | tested
    found.others = {
        key: PrefilteredPattern(fill_parts(row["pattern"], parts), fill_parts(row["test"], parts), row.get("flags", 0))
        for key, row in rows.items()
    }
    return found


def read_parts(name: str) -> Mapping[str, Any]:
    """Returns the texts that entries of data/NAME.toml may hold: its own entries, and whole sections."""
    tables = read_data_file(f"data/{name}")
    return tables | {key: text for section in _SECTIONS for key, text in tables.get(section, {}).items()}


def fill_parts(text: str | list[str] | dict[str, str], parts: Mapping[str, Any]) -> str:
    """Returns the text of an entry with its parts filled in; for a section, a choice of all its entries.

    Args:
        text: The entry or the section.
        parts: The entries that it may hold, and the parts of those. See `read_parts`.
    """

    def fill(place: re.Match[str]) -> str:
        function, name = place.groups()
        return _TABLES[function](*name.split("+")) if function else fill_parts(parts[name], parts)

    return _PLACE.sub(fill, "|".join(text.values()) if isinstance(text, dict) else "".join(text))
