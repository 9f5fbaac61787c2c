"""A policy file: which licences, authors, public sets and targets' licences are allowed, denied, or to be answered for.

docs/licences.md shows a whole one.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from eyas.base.config import build
from eyas.base.errors import InputError
from eyas.data.licenses.license_policy import LICENSE_REF, VERDICTS, PolicyTables, Verdict

TABLES = ("licenses", "generators", "datasets", "targets")


@dataclass(frozen=True)
class VerdictLists:
    """One table of a policy file: names with one verdict each."""

    allow: tuple[str, ...] = ()
    acknowledge: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyFile:
    """A policy file as written."""

    name: str | None = None
    licenses: VerdictLists = field(default_factory=VerdictLists)
    generators: VerdictLists = field(default_factory=VerdictLists)
    datasets: VerdictLists = field(default_factory=VerdictLists)
    targets: VerdictLists = field(default_factory=VerdictLists)


def read_policy_file(path: Path) -> PolicyFile:
    """A policy file. InputError where it cannot be read, UsageError for a key that does not exist, naming near ones."""
    try:
        mapping = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a policy in TOML", "check prompts.policy") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}", "a policy in TOML", "mend that line") from None
    return build(PolicyFile, mapping)


def resolve_verdicts(lists: VerdictLists, table: str, tables: PolicyTables) -> dict[str, Verdict]:
    """name -> verdict. InputError for a name that nothing could ever match, and for one listed twice."""
    found: dict[str, Verdict] = {}
    for verdict in VERDICTS:
        for written in getattr(lists, verdict):
            name = _resolve_name(written, table, tables)
            if name in found:
                raise InputError(
                    f"{written} twice in the policy's [{table}], under {found[name]} and {verdict}",
                    "each name once",
                    "take one out",
                )
            found[name] = verdict
    return found


def _resolve_name(written: str, table: str, tables: PolicyTables) -> str:
    if table == "datasets":
        return written.lower()
    if table == "generators":
        known = [family.id for family in tables.generator]
        if written not in known:
            raise InputError(f"{written} in the policy's [generators]", f"one of {', '.join(known)}", "correct it")
        return written
    entry = tables.find_license(written)
    if entry is not None:
        return entry.id
    if not LICENSE_REF.fullmatch(written):
        near = tables.near_licenses(written)
        raise InputError(
            f"{written} in the policy's [{table}], which is no known licence",
            "an SPDX id that eyas knows, or LicenseRef-<name> for one of your own",
            f"write {' or '.join(near)}" if near else "write it as LicenseRef-<name>",
        )
    return written
