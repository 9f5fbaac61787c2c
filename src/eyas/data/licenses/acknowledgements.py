"""Reads and writes acknowledgements.jsonl: one line for each claim that a named person acknowledged.

    {"who", "when", "claim", "kind", "name", "dataset", "license", "counted", "license_text", "revision", "reasons"}

`claim` is a digest over dataset, licenses, revision and license text: when one of them changes, it is no longer valid.
"""

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_json
from eyas.base.storage import write_atomic

ACKNOWLEDGEMENTS_FILE = "acknowledgements.jsonl"
MAX_NAME = 200  # characters


@dataclass(frozen=True)
class PendingClaim:
    """A claim that a person can acknowledge. license_text is a digest."""

    kind: str  # "prompts" or "target"
    name: str
    dataset: str | None
    license: str  # SPDX expression, as first stated
    counted: tuple[str, ...]  # every license that counts, with those of other statements and of a target's family
    license_text: str | None
    revision: str | None
    reasons: tuple[str, ...] = ()  # why it needs an acknowledgement; not part of the digest

    @cached_property
    def digest(self) -> str:
        """The digest that an acknowledgement names. A public dataset counts by its id, not by the source's name."""
        name = self.name if self.dataset is None else None
        licenses = [self.license, *sorted(self.counted)]
        return digest_json([self.kind, self.dataset, name, licenses, self.license_text, self.revision])


@dataclass(frozen=True)
class Acknowledgement:
    """One person's acknowledgement of one claim. when: ISO 8601, UTC."""

    who: str
    when: str
    claim: str
    license_text: str | None


def read_acknowledgements(path: Path) -> list[Acknowledgement]:
    """Reads all acknowledgements in the file's order; none if there is no file. Raises InputError for a bad line."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Check its permissions") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            read = Acknowledgement(record["who"], record["when"], record["claim"], record["license_text"])
            if not all(isinstance(text, str) for text in (read.who, read.when, read.claim, read.license_text or "")):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            problem = f"{path}:{number} is not an acknowledgement"
            raise InputError(problem, "Remove the line, and run with --acknowledge again") from None
        found.append(read)
    return found


def find_acknowledgement(pending: PendingClaim, acknowledgements: Sequence[Acknowledgement]) -> Acknowledgement | None:
    """Returns the first acknowledgement of exactly this claim."""
    return next((each for each in acknowledgements if each.claim == pending.digest), None)


def append_acknowledgements(
    path: Path, who: str, claims: Iterable[PendingClaim], now: datetime.datetime
) -> list[Acknowledgement]:
    """Appends one line for each claim, all of them or none.

    Args:
        path: The file.
        who: The person's name.
        claims: The result of `LicenseGate.find_pending`.
        now: The time, with a time zone.

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
    lines, made = [], []
    for claim in claims:
        record = {"who": name, "when": when, "claim": claim.digest, **asdict(claim)}
        lines.append(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        made.append(Acknowledgement(name, when, claim.digest, claim.license_text))
    if lines:
        before = path.read_bytes() if path.is_file() else b""
        separator = b"" if not before or before.endswith(b"\n") else b"\n"
        write_atomic(path, before + separator + b"".join(lines))
    return made
