"""Writes texts before and after the privacy filter to the file that `--show` names, for a human reader."""

from collections.abc import Sequence
from pathlib import Path

Written = tuple[str, ...] | None  # the texts of a record after the filter; None: the record was dropped


class ChangeLog:
    """The file of `--show`. Without a file nothing is written."""

    def __init__(self, path: Path | None, can_show: bool) -> None:
        """Opens an empty file. Raises SystemExit if these texts may not be shown.

        Args:
            path: The file of `--show`, or None.
            can_show: False in the half for reporting, whose single texts nobody reads.
        """
        if path and not can_show:
            raise SystemExit("--show needs --half develop: nobody reads single texts of the half for reporting")
        self._path = path
        if path:
            path.write_text("", "utf-8")

    def add(self, name: str, before: Sequence[str], after: Written, note: str = "") -> None:
        """Adds one record.

        Args:
            name: The set and the place of the record.
            before: Its texts.
            after: Its texts after the filter.
            note: What went wrong.
        """
        if self._path is None:
            return
        verdict = note or ("DROPPED" if after is None else "changed" if after != tuple(before) else "as it was")
        lines = [f"######## {name}  {verdict}", *before]
        if after is None:
            lines += ["-------- is dropped"]
        elif after != tuple(before):
            lines += ["-------- becomes", *after]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n\n")
