"""Reads and writes acknowledgements.jsonl: one line for each license claim that a named person acknowledged.

    {"who", "when", "claim", "kind", "name", "dataset", "license", "counted", "license_text", "revision", "reasons"}

`claim` is a digest of dataset, licenses, revision and license text. If one of them changes, the person must
acknowledge the new claim.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from eyas.base.errors import InputError, UsageError
from eyas.base.json_parser import parse_json
from eyas.base.provenance import digest_json
from eyas.base.storage import convert_read_errors, write_atomic

ACKNOWLEDGEMENTS_FILE = "acknowledgements.jsonl"
MAX_NAME = 200  # characters


@dataclass(frozen=True)
class PendingClaim:
    """A license claim that a person can acknowledge.

    Attributes:
        kind: "prompts" or "target".
        name: The name of the source or target.
        dataset: The hub id of a public dataset; None otherwise.
        license: The license as an SPDX expression, from the first statement about it.
        counted: The ids of all licenses that the gate checked, from all statements and from the family of a target.
        license_text: The digest of the license texts; None if there is none.
        revision: The commit of the dataset or target; None if it is unknown.
        reasons: The reasons why it needs an acknowledgement. They are not part of the digest.
    """

    kind: str
    name: str
    dataset: str | None
    license: str
    counted: tuple[str, ...]
    license_text: str | None
    revision: str | None
    reasons: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The digest that an acknowledgement names. A public dataset is identified by its hub id, not by `name`."""
        name = self.name if self.dataset is None else None
        licenses = [self.license, *sorted(self.counted)]
        return digest_json([self.kind, self.dataset, name, licenses, self.license_text, self.revision])


@dataclass(frozen=True)
class Acknowledgement:
    """One person's acknowledgement of one claim.

    Attributes:
        who: The name of the person.
        when: The time in UTC, in ISO 8601.
        claim: `PendingClaim.digest`.
        license_text: The digest of the license texts; None if there was none.
    """

    who: str
    when: str
    claim: str
    license_text: str | None


def read_acknowledgements(path: Path) -> list[Acknowledgement]:
    """Reads all acknowledgements of a file; returns [] if there is no file. Raises InputError for an invalid line."""
    with convert_read_errors(path, "Check its permissions"):
        lines = path.read_bytes().splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_json(Acknowledgement, line))
        except ValueError:
            problem = f"{path}:{number} is not an acknowledgement"
            raise InputError(problem, "Remove the line, and run with --acknowledge again") from None
    return found


def find_acknowledgement(pending: PendingClaim, acknowledgements: Sequence[Acknowledgement]) -> Acknowledgement | None:
    """Returns the first acknowledgement of this claim, or None if there is none."""
    return next((each for each in acknowledgements if each.claim == pending.digest), None)


def append_acknowledgements(
    path: Path, who: str, claims: Sequence[PendingClaim], now: datetime.datetime
) -> list[Acknowledgement]:
    """Appends one line for each claim. Writes all lines or none.

    Args:
        path: The file acknowledgements.jsonl.
        who: The name of the person.
        claims: The result of `LicenseGate.find_pending`.
        now: The current time, with a time zone.

    Raises:
        UsageError: The name is empty, too long or not printable.
        InputError: The file is damaged.
    """
    name = who.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        problem = f"--acknowledge {who[:MAX_NAME]!r} is not a name of one line and up to {MAX_NAME} characters"
        raise UsageError(problem, "Write for example --acknowledge 'A. Person, data protection'")
    assert now.tzinfo is not None, "a time without a zone"
    when = now.astimezone(datetime.UTC).isoformat(timespec="seconds")
    read_acknowledgements(path)
    records = [{"who": name, "when": when, "claim": claim.digest, **asdict(claim)} for claim in claims]
    if records:
        before = path.read_bytes() if path.is_file() else b""
        separator = b"" if not before or before.endswith(b"\n") else b"\n"
        lines = (json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
        write_atomic(path, before + separator + b"".join(lines))
    return [Acknowledgement(name, when, claim.digest, claim.license_text) for claim in claims]
