"""Reads statements about the license of a source or a target, which the license gate checks.

The statements are in the recipe, in the card (front matter of README.md), and in license files.
"""

import ast
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import eyas
from eyas.base.errors import InputError
from eyas.base.provenance import digest_bytes, digest_json
from eyas.base.storage import StoragePath
from eyas.data.licenses.license_policy import VERDICTS, LicensePolicy, Verdict

LICENSE_FILE = re.compile(r"(?:licen[cs]e|copying)(?:[-._].*)?", re.IGNORECASE)
OTHER_TERMS = re.compile(r"(?:use[-_ ]?policy|notice|terms)(?:[-._].*)?", re.IGNORECASE)
EMBEDDED_TARGET = Path(eyas.__file__).parent / "embedded" / "target"
MAX_EXPRESSION = 500  # characters; a longer one is a mistake, such as the license itself
_OPERATORS = {"AND": " and ", "OR": " or ", "(": "(", ")": ")"}


@dataclass(frozen=True)
class SourceClaim:
    """All statements about the license of a prompt source."""

    name: str  # of the source, as in the ledger
    dataset: str | None = None  # hub id of a public dataset
    license: str | None = None  # as the recipe names it
    license_text: bytes | None = None  # content of the license file
    revision: str | None = None
    card: Mapping[str, Any] = field(default_factory=dict)  # front matter of README.md


@dataclass(frozen=True)
class TargetClaim:
    """All statements about the license of a target, from its directory and from the recipe."""

    name: str  # as the recipe names it
    license: str | None = None  # the recipe's target.license
    card: Mapping[str, Any] = field(default_factory=dict)  # front matter of README.md
    texts: Mapping[str, bytes] = field(default_factory=dict)  # file name -> content: licenses, use policies, notices
    names: tuple[str, ...] = ()  # hub ids that it may have: its own, and those it was made from
    model_type: str | None = None
    revision: str | None = None


Claim = SourceClaim | TargetClaim
"""The license statements of a dataset or of a target."""


def read_target_claim(directory: Path, name: str, license: str | None = None) -> TargetClaim:
    """Reads the claim of a target's directory.

    The small target that ships with eyas has no card. It is recognized by its directory in the package.

    Args:
        directory: The directory of the target.
        name: The name of the target in the recipe.
        license: The recipe's target.license.

    Raises:
        InputError: The card is damaged.
    """
    if directory.resolve() == EMBEDDED_TARGET.resolve():
        return TargetClaim(name, license, {"license": "Apache-2.0"}, names=("embedded",))
    card = read_card(directory)
    texts = {
        path.name: StoragePath(str(path)).read_bytes()
        for path in sorted(directory.iterdir())
        if path.is_file() and (LICENSE_FILE.fullmatch(path.name) or OTHER_TERMS.fullmatch(path.name))
    }
    config = _read_config(directory / "config.json")
    cached = re.search(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})$", directory.as_posix())
    bases = card.get("base_model")
    names = [
        "/".join(Path(name).parts[-2:]),
        "/".join(directory.parts[-2:]),
        f"{cached[1]}/{cached[2]}" if cached else None,
        config.get("_name_or_path"),
        *(bases if isinstance(bases, list) else [bases]),
    ]
    model_type = config.get("model_type")
    return TargetClaim(
        name=name,
        license=license,
        card=card,
        texts=texts,
        names=tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)),
        model_type=model_type if isinstance(model_type, str) else None,
        revision=cached[3] if cached else None,
    )


def _read_config(path: Path) -> dict[str, Any]:
    # A target without a configuration is rejected elsewhere, with a better reason.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            return value
    return {}


# --- cards and license files -----------------------------------------------------------------------------------------


def read_card(directory: Path) -> dict[str, Any]:
    """Reads the YAML between the first two "---" lines of a directory's README.md; returns {} if there is none.

    Raises InputError for a file that cannot be read and for front matter that is not a YAML mapping.
    """
    import yaml

    path = directory / "README.md"
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"The card {path} cannot be read ({reason})", "Check the file") from None
    found = re.match(r"\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", text, re.DOTALL | re.MULTILINE)
    try:
        value = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, RecursionError, ValueError):
        value = ()  # not a mapping either
    if not isinstance(value, dict | None):
        raise InputError(f"The front matter of {path} is not a YAML mapping", "Correct the lines between the two ---")
    return value or {}


def find_card_license(card: Mapping[str, Any]) -> str | None:
    """Returns the license on a card as one expression, or None. If it is "other", returns the card's `license_name`."""
    stated = card.get("license")
    names = [str(name).strip() for name in (stated if isinstance(stated, list) else [stated]) if name]
    own_name = str(card.get("license_name") or "").strip()
    names = [own_name or name if name.lower() == "other" else name for name in names]
    return " AND ".join(name for name in names if name) or None


def find_license_link(card: Mapping[str, Any]) -> str | None:
    """Returns the URL of the license text that a card gives as `license_link`, or None."""
    link = card.get("license_link")
    return link if isinstance(link, str) and 0 < len(link) <= MAX_EXPRESSION else None


def digest_texts(texts: Mapping[str, bytes]) -> dict[str, str]:
    """Returns the digest of each text by file name."""
    return {name: digest_bytes(text) for name, text in sorted(texts.items())}


def digest_license_text(texts: Mapping[str, bytes]) -> str | None:
    """Returns one digest of all license texts, or None if there is none. texts: content by file name."""
    digests = digest_texts(texts)
    return next(iter(digests.values())) if len(digests) == 1 else digest_json(digests) if digests else None


# --- SPDX expressions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expression:
    """An SPDX expression: one license, or parts joined by AND (all hold) or OR (the user may choose)."""

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
        """The ids of all licenses in the expression."""
        own = () if self.id is None else (self.id,)
        return (*own, *(name for part in self.parts for name in part.ids))

    def select_ids(self, verdict: Callable[[str], Verdict]) -> tuple[str, ...]:
        """Returns the license ids that the gate must check: all parts of an AND, and the mildest part of an OR.

        Of equally mild parts, the first is returned. verdict: returns the verdict of the policy on an id.
        """
        if self.id is not None:
            return (self.id,)
        selected = [part.select_ids(verdict) for part in self.parts]
        if self.operator == "AND":
            return tuple(dict.fromkeys(name for names in selected for name in names))
        return min(selected, key=lambda names: max(VERDICTS.index(verdict(name)) for name in names))


def parse_expression(text: str, owner: str, policy: LicensePolicy) -> Expression:
    """Parses an SPDX expression, or one license in any known spelling.

    Args:
        text: The expression, with AND and OR in capitals.
        owner: The source or target with this license, for messages.
        policy: The policy, which knows other spellings of licenses.

    Raises:
        InputError: A license is not known, the expression is not valid, or it uses WITH, which eyas does not support.
    """
    if len(text) > MAX_EXPRESSION:
        raise InputError(f"The license of {owner} has {len(text)} characters", "Name it by its SPDX id")
    ids: list[str] = []
    python = ""
    # Python's `and` and `or` have the precedence of SPDX's AND and OR (SPDX 2.3, annex D.4.5), so `ast` parses it.
    for token in re.split(r"([()]|\bAND\b|\bOR\b|\bWITH\b)", text):
        name = token.strip()
        if name == "WITH":
            problem = f"The license {text!r} of {owner} has an exception (WITH), which eyas does not weigh"
            raise InputError(problem, "Read the exception, and name the license without it if that is enough for you")
        if name and name not in _OPERATORS:
            python += f"_{len(ids)}"
            ids.append(_require_known(name, owner, policy))
        else:
            python += _OPERATORS.get(name, "")
    try:
        return _to_expression(ast.parse(python.strip(), mode="eval").body, ids)
    except (SyntaxError, MemoryError, RecursionError):  # the last two: hundreds of brackets
        problem = f"The license {text!r} of {owner} is not a valid expression"
        raise InputError(problem, "Join SPDX ids with AND and OR, for example 'MIT OR Apache-2.0'") from None


def _require_known(name: str, owner: str, policy: LicensePolicy) -> str:
    found = policy.find_id(name)
    if found is None:
        near = policy.tables.near_licenses(name)
        fix = f"Write {' or '.join(near)} if you mean that" if near else "Find out which license it is"
        problem = f"{name!r} in the license of {owner} is not a known license, and unknown licenses are rejected"
        raise InputError(problem, f"{fix}, or list it as LicenseRef-<name> in the file that prompts.policy names")
    return found


def _to_expression(node: ast.expr, ids: list[str]) -> Expression:
    if isinstance(node, ast.Name):
        return Expression("ID", ids[int(node.id[1:])])
    if not isinstance(node, ast.BoolOp):
        raise SyntaxError  # such as a license right before a bracket
    operator = "AND" if isinstance(node.op, ast.And) else "OR"
    return Expression(operator, parts=tuple(_to_expression(part, ids) for part in node.values))
