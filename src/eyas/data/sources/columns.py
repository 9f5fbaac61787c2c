"""Finds the user's text, the conversation, the id and the language of a record by the names that the recipe gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import InputError
from eyas.data.sources.record_formats import MISSING_COLUMN, RejectedRecord, describe_form, show_names

_ID = re.compile(r"[\w.:/+=#-]{1,128}")
_LANGUAGE = re.compile(r"([a-z]{2})(?:[-_].*)?")


@dataclass(frozen=True)
class ColumnsConfig:
    """The recipe keys `prompts.columns.*`: where a record has its parts, if eyas does not know its format.

    A name is a column, or the dotted path of a key in nested JSON: `meta.turns.0.text`. A number is an index in a list;
    without it the path leads through all items of the list. A source without `columns` has those of `prompts.columns`.

    Attributes:
        text: The user's text; a list of texts is several user turns.
        conversation: The list of messages.
        id: A unique id of the record, with which its id in eyas ends. eyas writes it to ledgers, so it must not be
            personal data.
        language: The main language of the record, as an ISO 639-1 code such as "de".
        records: The key of the array of records, in a JSON file that is one object.
    """

    text: str | None = None
    conversation: str | None = None
    id: str | None = None
    language: str | None = None
    records: str | None = None

    def find_content(self, value: Any) -> Any:
        """Returns the part of a record that `parse_record` reads: the conversation, else the text, else the record."""
        paths = [path for path in (self.conversation, self.text) if path is not None]
        if not paths or isinstance(value, RejectedRecord):
            return value
        found = (part for path in paths if (part := find_value(value, path)) is not None)
        return next(found, RejectedRecord(MISSING_COLUMN, None, describe_form(value)))

    def find_id(self, value: Any) -> str | None:
        """Returns the id of a record; None if it has none, or one with other characters than _ID allows."""
        found = find_value(value, self.id or "")
        return str(found) if found is not None and _ID.fullmatch(str(found)) else None

    def find_language(self, value: Any) -> str | None:
        """Returns the ISO 639-1 code of the language of a record; None if it has none or another name of it."""
        match = self.language and _LANGUAGE.fullmatch(str(find_value(value, self.language)).lower())
        return match[1] if match else None

    def choose(self, file_name: str, present: Sequence[str]) -> set[str]:
        """Returns the columns of a table that the recipe names. Raises InputError if the table lacks one of them."""
        chosen = set()
        for path in filter(None, (self.text, self.conversation, self.id, self.language)):
            column = path if path in present else path.partition(".")[0]
            if column not in present:
                problem = f"{file_name} has no column {path}, but {show_names(present)}"
                raise InputError(problem, "Correct prompts.columns")
            chosen.add(column)
        return chosen


def find_value(value: Any, path: str) -> Any:
    """Returns the value at a dotted path, or the list of the values at a path through a list; None if there is none."""
    head, _, rest = path.partition(".")
    if isinstance(value, list) and not head.isdecimal():
        return [found for item in value if (found := find_value(item, path)) is not None] or None
    if isinstance(value, dict) and path in value:  # a name may hold dots
        return value[path]
    if isinstance(value, list):
        item = value[int(head)] if int(head) < len(value) else None
    else:
        item = value.get(head) if isinstance(value, dict) else None
    return find_value(item, rest) if rest else item
