"""What eyas knows of licences, of who writes prompts, of public sets and of targets: policies/*.toml, read strictly.

Facts carry the day on which they were looked up. They are kept to record and to gate; they are no legal advice.
"""

import difflib
import fnmatch
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from eyas.base.config import build
from eyas.base.errors import InputError

Verdict = Literal["allow", "acknowledge", "deny"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""From mild to strict."""

POLICIES = Path(__file__).parent / "policies"
LICENSE_REF = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")  # SPDX 2.3, annex D: how a licence of no list is named
MAX_EXPRESSION = 500  # characters; a longer one is a mistake, such as the licence itself
MARKS_BYTES = 4000  # of a licence's text, where its title stands
# Words that tell no two licences apart, once the numbers stand.
_FILLER_WORDS = {
    "the",
    "license",
    "licence",
    "licensed",
    "version",
    "international",
    "unported",
    "public",
    "under",
    "agreement",
}


@dataclass(frozen=True)
class Fact:
    """What was found out, where and when. verified: false for background knowledge not looked up again that day."""

    text: str
    source: str
    looked_up: str  # YYYY-MM-DD
    verified: bool = True

    def to_json(self) -> dict[str, Any]:
        """As it stands in a decision."""
        return {
            "text": self.text,
            "source": self.source,
            "looked_up": self.looked_up,
            "verified": self.verified,
        }


@dataclass(frozen=True)
class License:
    """policies/licenses.toml tells what the fields mean."""

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
    """Who may have written prompts: a family of models, people, or nobody knows."""

    id: str
    name: str
    fact: Fact | None = None


@dataclass(frozen=True)
class KnownDataset:
    """A public set of prompts: its licence now and before, who wrote the prompts, and what a policy should do."""

    ids: tuple[str, ...]  # patterns, small letters
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
    """A family of targets, by hub name. model_types only help to tell the user which licence to look for."""

    name: str
    names: tuple[str, ...]  # patterns, small letters
    license: str
    fact: Fact
    model_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyTables:
    """The shipped knowledge, looked up by whatever a card or a person wrote."""

    license: tuple[License, ...]
    generator: tuple[Generator, ...]
    dataset: tuple[KnownDataset, ...]
    target: tuple[KnownTarget, ...]

    @cached_property
    def _spellings(self) -> dict[str, License]:
        return {
            normalize_name(text): entry for entry in self.license for text in (entry.id, entry.name, *entry.aliases)
        }

    def find_license(self, text: str) -> License | None:
        """The licence of an SPDX id or of a common spelling: "apache 2.0", "MIT License", "cc-by-4.0"."""
        return self._spellings.get(normalize_name(text))

    def near_licenses(self, text: str) -> list[str]:
        """Ids that may have been meant."""
        near = difflib.get_close_matches(normalize_name(text), self._spellings, n=5, cutoff=0.6)
        return list(dict.fromkeys(self._spellings[match].id for match in near))[:3]

    def find_generator(self, name: str) -> Generator | None:
        """The family of that id."""
        return next((family for family in self.generator if family.id == name), None)

    def find_dataset(self, dataset: str | None) -> KnownDataset | None:
        """What is known of a public set, by its id."""
        return next((known for known in self.dataset if _matches(dataset, known.ids)), None)

    def find_target(self, name: str | None) -> KnownTarget | None:
        """The family of a target, by its hub id."""
        return next((known for known in self.target if _matches(name, known.names)), None)

    def recognize(self, text: bytes) -> tuple[str, ...]:
        """Ids of the licences whose own words a licence file holds; several where it holds several licences."""
        head = " ".join(text[:MARKS_BYTES].decode(errors="replace").lower().split())
        return tuple(entry.id for entry in self.license if entry.marks and all(mark in head for mark in entry.marks))


def load_tables() -> PolicyTables:
    """The tables that ship with eyas."""
    mapping: dict[str, Any] = {}
    for name in ("licenses", "generators", "datasets", "targets"):
        mapping |= tomllib.loads((POLICIES / f"{name}.toml").read_text(encoding="utf-8"))
    return build(PolicyTables, mapping)


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Of at least one."""
    found = set(verdicts)
    return next(verdict for verdict in reversed(VERDICTS) if verdict in found)


def normalize_name(text: str) -> str:
    """One key for all spellings of a licence: "Apache License, Version 2.0", "apache-2.0" and "Apache 2" agree."""
    words = []
    for word in re.findall(r"[a-z0-9.+]+", text.lower()):
        word = re.sub(r"^v(?=\d)|(?<=\d)(?:\.0)+(?=\+?$)", "", word.strip("."))
        if word not in _FILLER_WORDS:
            words.append(word)
    return "".join(words)


def _matches(name: str | None, patterns: Iterable[str]) -> bool:
    return name is not None and any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expression:
    """An SPDX expression: one licence, or parts joined by AND (all hold) or OR (the user may choose)."""

    operator: Literal["ID", "AND", "OR"]
    id: str | None = None
    parts: tuple["Expression", ...] = ()

    def __str__(self) -> str:
        if self.id is not None:
            return self.id
        texts = [f"({part})" if part.operator == "OR" and self.operator == "AND" else str(part) for part in self.parts]
        return f" {self.operator} ".join(texts)

    @property
    def ids(self) -> tuple[str, ...]:
        """Every licence in it."""
        own = () if self.id is None else (self.id,)
        return (*own, *(name for part in self.parts for name in part.ids))

    def weigh(self, verdict: Callable[[str], Verdict]) -> tuple[str, ...]:
        """The ids that count: all of an AND, the mildest choice of an OR (the first of equals)."""
        if self.id is not None:
            return (self.id,)
        weighed = [part.weigh(verdict) for part in self.parts]
        if self.operator == "AND":
            return tuple(dict.fromkeys(name for names in weighed for name in names))
        return min(weighed, key=lambda names: max(VERDICTS.index(verdict(name)) for name in names))


def parse_expression(
    text: str, where: str, resolve: Callable[[str], str | None], near: Callable[[str], list[str]]
) -> Expression:
    """An SPDX expression, or one licence in any known spelling. `resolve` gives the id of a spelling, `near` guesses.

    `where` is whose licence it is, for messages.

    Raises InputError for a licence of no known name, for WITH (what an exception grants is not weighed) and for
    expressions that do not close.
    """
    if len(text) > MAX_EXPRESSION:
        raise InputError(
            f"a licence of {len(text)} characters for {where}", "an SPDX id or an expression", "name the licence"
        )
    tokens = [token.strip() for token in re.split(r"([()]|\bAND\b|\bOR\b|\bWITH\b)", text) if token.strip()]
    parser = _Parser(f"the licence {text!r} of {where}", tokens, resolve, near)
    expression = parser.alternatives()
    if parser.tokens:
        raise parser.wrong(f"{parser.tokens[0]!r} where the expression should end")
    return expression


class _Parser:
    """Recursive descent: OR binds weaker than AND (SPDX 2.3, annex D.4.5)."""

    def __init__(
        self, what: str, tokens: list[str], resolve: Callable[[str], str | None], near: Callable[[str], list[str]]
    ) -> None:
        self.what = what
        self.tokens = tokens
        self.resolve = resolve
        self.near = near

    def wrong(self, why: str) -> InputError:
        return InputError(
            f"{self.what}, with {why}",
            "an SPDX id, or ids joined by AND and OR, in capitals, with brackets",
            "mend the expression",
        )

    def alternatives(self) -> Expression:
        return self._joined("OR", lambda: self._joined("AND", self._atom))

    def _joined(self, operator: Literal["AND", "OR"], part: Callable[[], Expression]) -> Expression:
        parts = [part()]
        while self.tokens and self.tokens[0] == operator:
            self.tokens.pop(0)
            parts.append(part())
        return parts[0] if len(parts) == 1 else Expression(operator, parts=tuple(parts))

    def _atom(self) -> Expression:
        if not self.tokens or self.tokens[0] in ("AND", "OR", "WITH", ")"):
            raise self.wrong("a licence missing")
        token = self.tokens.pop(0)
        if token == "(":
            inside = self.alternatives()
            if not self.tokens or self.tokens.pop(0) != ")":
                raise self.wrong("a bracket that does not close")
            return inside
        if self.tokens and self.tokens[0] == "WITH":
            raise InputError(
                f"{self.what}, with an exception",
                "a licence without exceptions: what they grant is not weighed",
                "read it, and name the licence without the exception if that is enough for you",
            )
        found = self.resolve(token)
        if found is None:
            near = self.near(token)
            do = f"write {' or '.join(near)} if you mean that" if near else "find out which licence it is"
            raise InputError(
                f"{self.what}: {token!r} is not known",
                "an SPDX id that the policy names; unknown means refuse",
                f"{do}, or list it as LicenseRef-<name> in the file that prompts.policy names",
            )
        return Expression("ID", found)


# --- cards and texts -------------------------------------------------------------------------------------------------


def read_front_matter(path: Path) -> dict[str, Any]:
    """The YAML between the first two "---" lines of a README.md, as the hub writes it; {} where there is none.

    Raises InputError for a file that cannot be read and for front matter that is no YAML mapping.
    """
    import yaml  # comes with transformers and huggingface_hub

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}", "a card in Markdown, UTF-8", "check the file") from None
    found = re.match(r"\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", text, re.DOTALL | re.MULTILINE)
    if not found:
        return {}
    try:
        value = yaml.safe_load(found[1])
    except (yaml.YAMLError, RecursionError, ValueError):
        value = ()  # no mapping either
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{path} with front matter that is no YAML mapping", "a card of the hub", "mend its head")
    return value


def find_card_license(card: Mapping[str, Any]) -> str | None:
    """The licence that a card states, as one expression; what stands under `license_name` where it says "other"."""
    stated = card.get("license")
    names = [str(name).strip() for name in (stated if isinstance(stated, list) else [stated]) if name]
    own_name = str(card.get("license_name") or "").strip()
    names = [own_name or name if name.lower() == "other" else name for name in names]
    return " AND ".join(name for name in names if name) or None


def find_license_link(card: Mapping[str, Any]) -> str | None:
    """Where the card says that the licence stands."""
    link = card.get("license_link")
    return link if isinstance(link, str) and 0 < len(link) <= MAX_EXPRESSION else None


def read_license_text(value: Path | str) -> bytes:
    """A licence as it stands in its file, given itself or by its path: what has no line break is a path. InputError."""
    if isinstance(value, str) and "\n" in value.strip():
        return value.encode()
    try:
        return Path(value).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(
            f"no licence text at {value} ({error})", "a file that holds the licence", "check the path"
        ) from None
