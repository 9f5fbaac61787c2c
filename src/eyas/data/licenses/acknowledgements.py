"""Who answers for what: acknowledgements.jsonl, one line for each claim that somebody acknowledged by name.

    {"who", "when", "claim", "kind", "name", "dataset", "license", "counted", "license_text", "revision", "reasons"}

`claim` is a digest over data set, licences, revision and licence text: where one of them changes, it holds no longer.
"""

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_json
from eyas.base.storage import write_atomic

ACKNOWLEDGEMENTS_FILE = "acknowledgements.jsonl"
MAX_WHO = 200  # characters


@dataclass(frozen=True)
class PendingClaim:
    """A claim as somebody can answer for it. license_text is a digest."""

    kind: str  # "prompts" or "target"
    name: str
    dataset: str | None
    license: str  # SPDX expression, as first stated
    counted: tuple[str, ...]  # every licence that counts, those of other statements and of a target's family too
    license_text: str | None
    revision: str | None
    reasons: tuple[str, ...] = ()  # why it needs an acknowledgement; no part of the digest

    @cached_property
    def digest(self) -> str:
        """What an acknowledgement holds for. A public set goes by its id, whatever the source is called."""
        name = self.name if self.dataset is None else None
        licenses = [self.license, *sorted(self.counted)]
        return digest_json([self.kind, self.dataset, name, licenses, self.license_text, self.revision])


@dataclass(frozen=True)
class Acknowledgement:
    """Who answered for which claim, and when (ISO 8601, UTC)."""

    who: str
    when: str
    claim: str
    license_text: str | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a decision."""
        return asdict(self)


def read_acknowledgements(path: Path) -> list[Acknowledgement]:
    """Every acknowledgement of the file, in its order; none where there is no file. InputError names a bad line."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a readable file", "check its permissions") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            read = Acknowledgement(record["who"], record["when"], record["claim"], record["license_text"])
            texts = (read.who, read.when, read.claim, read.license_text or "")
            if not all(isinstance(text, str) for text in texts):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(
                f"{path}:{number} is no acknowledgement",
                "a line that --acknowledge wrote",
                "take the line out, and acknowledge again what is then missing",
            ) from None
        found.append(read)
    return found


def find_acknowledgement(pending: PendingClaim, acknowledgements: Sequence[Acknowledgement]) -> Acknowledgement | None:
    """The first acknowledgement of exactly this claim."""
    return next((each for each in acknowledgements if each.claim == pending.digest), None)


def append_acknowledgements(
    path: Path, who: str, claims: Iterable[PendingClaim], now: datetime.datetime
) -> list[Acknowledgement]:
    """Appends one line for each claim of `LicenseGate.find_pending`; all of them or none. `now` has a time zone.

    Raises UsageError for a name that is none, InputError for a file that is damaged.
    """
    name = who.strip()
    if not name or len(name) > MAX_WHO or not name.isprintable():
        raise UsageError(
            f"--acknowledge {who[:MAX_WHO]!r}",
            f"the name of whoever answers for it, one line of up to {MAX_WHO} characters",
            "write for example --acknowledge 'A. Person, data protection'",
        )
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
        joint = b"" if not before or before.endswith(b"\n") else b"\n"
        write_atomic(path, before + joint + b"".join(lines))
    return made
