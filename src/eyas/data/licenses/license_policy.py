"""The license policy: verdicts on licenses, authors and datasets, and the facts about them that eyas ships.

Both are in `policies/*.toml`. default.toml has the verdicts; the user's file (recipe key `prompts.policy`) overrides
them. The other files have facts, each with the day on which it was looked up. None of this is legal advice.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from eyas.base.config import build, load_toml
from eyas.base.errors import InputError
from eyas.base.provenance import digest_json

Verdict = Literal["allow", "acknowledge", "deny"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All verdicts, from mild to strict."""

POLICIES = Path(__file__).parent / "policies"
LICENSE_REF = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")  # SPDX 2.3, annex D: the name of a license that is on no list
TITLE_BYTES = 4000  # at the start of a license text; they contain its title
# Words in the names of licenses that are ignored when names are compared.
_FILLER = re.compile("the|license|licence|licensed|version|international|unported|public|under|agreement")


@dataclass(frozen=True)
class Fact:
    """A fact with its source and the day of the lookup. verified=False marks a fact that was not looked up."""

    text: str
    source: str
    looked_up: str  # YYYY-MM-DD
    verified: bool = True


@dataclass(frozen=True)
class License:
    """A known license. policies/licenses.toml explains the fields."""

    id: str
    name: str
    aliases: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    duties: tuple[str, ...] = ()
    generator: str | None = None
    name_prefix: str | None = None
    fact: Fact | None = None


@dataclass(frozen=True)
class Generator:
    """A possible author of prompts: a family of models, people, or an unknown author."""

    id: str
    name: str
    fact: Fact | None = None


@dataclass(frozen=True)
class KnownDataset:
    """A public dataset: its license now and before, the authors of its prompts, and the verdict on it."""

    ids: tuple[str, ...]  # patterns, lower case
    name: str
    authors: tuple[str, ...]  # generator ids
    verdict: Verdict
    why: str
    fact: Fact
    license: str | None = None
    since: str | None = None
    former: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownTarget:
    """A family of targets, such as Llama 3.

    Attributes:
        name: The name of the family.
        names: Patterns of the hub ids of its targets, in lower case.
        license: The license id of the family.
        fact: The fact behind it.
        model_types: Values of `model_type` in config.json. They only select the license that an error suggests.
    """

    name: str
    names: tuple[str, ...]
    license: str
    fact: Fact
    model_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyTables:
    """The shipped facts. Each field is a table of the file with that name in policies/."""

    license: tuple[License, ...]
    generator: tuple[Generator, ...]
    dataset: tuple[KnownDataset, ...]
    target: tuple[KnownTarget, ...]

    @staticmethod
    def load() -> "PolicyTables":
        """Reads the shipped files."""
        files = [load_toml(POLICIES / f"{name}.toml") for name in TABLES]
        return build(PolicyTables, {table: entries for file in files for table, entries in file.items()})

    @cached_property
    def _by_name(self) -> dict[str, License]:
        named = ((name, entry) for entry in self.license for name in (entry.id, entry.name, *entry.aliases))
        return {normalize_name(name): entry for name, entry in named}

    def find_license(self, text: str) -> License | None:
        """Returns the license of an SPDX id or a common spelling: "apache 2.0", "MIT License", "cc-by-4.0"."""
        return self._by_name.get(normalize_name(text))

    def near_licenses(self, text: str) -> list[str]:
        """Returns up to three ids of licenses with a similar spelling, for error messages."""
        near = difflib.get_close_matches(normalize_name(text), self._by_name, n=5, cutoff=0.6)
        return list(dict.fromkeys(self._by_name[match].id for match in near))[:3]

    def find_generator(self, name: str) -> Generator | None:
        """Returns the author with this id, or None if it is unknown."""
        return next((family for family in self.generator if family.id == name), None)

    def find_dataset(self, dataset: str | None) -> KnownDataset | None:
        """Returns the entry of a public dataset by its hub id, or None if it is unknown."""
        return next((known for known in self.dataset if _matches(dataset, known.ids)), None)

    def find_target(self, name: str | None) -> KnownTarget | None:
        """Returns the family of a target by its hub id, or None if it is unknown."""
        return next((known for known in self.target if _matches(name, known.names)), None)

    def recognize(self, text: bytes) -> tuple[str, ...]:
        """Returns the ids of the licenses whose typical phrases occur in the text of a license file."""
        head = " ".join(text[:TITLE_BYTES].decode(errors="replace").lower().split())
        return tuple(entry.id for entry in self.license if entry.marks and all(mark in head for mark in entry.marks))


def normalize_name(text: str) -> str:
    """Returns the same key for all spellings of a license: "Apache License, Version 2.0", "apache-2.0", "Apache 2"."""
    parts = re.findall(r"[a-z0-9.+]+", text.lower())
    words = (re.sub(r"^v(?=\d)|(?<=\d)(?:\.0)+(?=\+?$)", "", part.strip(".")) for part in parts)
    return "".join(word for word in words if not _FILLER.fullmatch(word))


def _matches(name: str | None, patterns: Iterable[str]) -> bool:
    return name is not None and any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerdictLists:
    """A table of a policy file: the names that have each verdict."""

    allow: tuple[str, ...] = ()
    acknowledge: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyFile:
    """A policy file as written. docs/licenses.md shows an example."""

    name: str | None = None
    licenses: VerdictLists = field(default_factory=VerdictLists)
    generators: VerdictLists = field(default_factory=VerdictLists)
    datasets: VerdictLists = field(default_factory=VerdictLists)
    targets: VerdictLists = field(default_factory=VerdictLists)


TABLES = ("licenses", "generators", "datasets", "targets")


@dataclass(frozen=True)
class LicensePolicy:
    """The shipped policy, overridden by the user's file, and the shipped facts."""

    name: str
    verdicts: Mapping[str, Mapping[str, Verdict]]  # table -> name -> verdict; dataset ids in lower case
    tables: PolicyTables

    @staticmethod
    def load(path: Path | None = None) -> "LicensePolicy":
        """Loads the policy. path: the user's file. Raises InputError or UsageError for a missing or invalid file."""
        tables = PolicyTables.load()
        files = [POLICIES / "default.toml", *([] if path is None else [path])]
        read = [build(PolicyFile, load_toml(file)) for file in files]
        verdicts: dict[str, dict[str, Verdict]] = {table: {} for table in TABLES}
        for policy in read:
            for table in TABLES:
                verdicts[table] |= _resolve_verdicts(getattr(policy, table), table, tables)
        return LicensePolicy(read[-1].name or files[-1].stem, verdicts, tables)

    @cached_property
    def digest(self) -> str:
        """The digest of all verdicts and facts."""
        return digest_json({"verdicts": self.verdicts, "tables": asdict(self.tables)})

    def find_id(self, spelling: str) -> str | None:
        """Returns the id of a license in any spelling, or None. The license is known, or only this policy lists it."""
        if (entry := self.tables.find_license(spelling)) is not None:
            return entry.id
        listed = (name for table in ("licenses", "targets") for name in self.verdicts[table])
        return next((name for name in listed if name.lower() == spelling.lower()), None)


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns the strictest verdict. Requirement: `verdicts` is not empty."""
    return max(verdicts, key=VERDICTS.index)


def _resolve_verdicts(lists: VerdictLists, table: str, tables: PolicyTables) -> dict[str, Verdict]:
    """Returns the verdict of each name. Raises InputError for an unknown name and for one that is listed twice."""
    found: dict[str, Verdict] = {}
    for verdict in VERDICTS:
        for written in getattr(lists, verdict):
            name = _resolve_name(written, table, tables)
            if name in found:
                problem = f"The policy lists {written} twice in [{table}], under {found[name]} and {verdict}"
                raise InputError(problem, "Remove one of them")
            found[name] = verdict
    return found


def _resolve_name(written: str, table: str, tables: PolicyTables) -> str:
    if table == "datasets":
        return written.lower()
    if table == "generators":
        known = [family.id for family in tables.generator]
        if written not in known:
            near = difflib.get_close_matches(written, known, n=1) or known[:1]
            raise InputError(f"The policy lists {written} in [generators], which is no known author", f"Use {near[0]}")
        return written
    if (entry := tables.find_license(written)) is not None:
        return entry.id
    if not LICENSE_REF.fullmatch(written):
        near = tables.near_licenses(written)
        problem = f"The policy lists {written} in [{table}], which is no known license"
        raise InputError(problem, f"Write {' or '.join(near)}" if near else "Write it as LicenseRef-<name>")
    return written
