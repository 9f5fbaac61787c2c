"""What is said of a source of prompts and of a target: what the licence gate (`policy`) weighs."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eyas
from eyas.base.provenance import digest_bytes, digest_json
from eyas.data.licenses.license_policy import read_front_matter, read_license_text

LICENSE_FILE = re.compile(r"(?:licen[cs]e|copying)(?:[-._].*)?", re.IGNORECASE)
OTHER_TERMS = re.compile(r"(?:use[-_ ]?policy|notice|terms)(?:[-._].*)?", re.IGNORECASE)
EMBEDDED_TARGET = Path(eyas.__file__).parent / "embedded" / "target"


@dataclass(frozen=True)
class SourceClaim:
    """What is said of a source of prompts. card: the front matter of its README.md (`licences.read_front_matter`)."""

    name: str  # of the source, as the ledger calls it
    dataset: str | None = None  # public id, if it is a public set
    license: str | None = None  # as the recipe names it
    license_text: Path | str | None = None  # the licence file: its path, or its text (which has line breaks)
    revision: str | None = None
    is_hub: bool = False
    gated: bool | None = None
    card: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TargetClaim:
    """What is said of a target, by its directory and by the recipe."""

    name: str  # as the recipe names it
    license: str | None = None  # the recipe's target.license
    card: Mapping[str, Any] = field(default_factory=dict)  # front matter of README.md
    texts: Mapping[str, bytes] = field(default_factory=dict)  # file name -> content: licences, use policies, notices
    names: tuple[str, ...] = ()  # hub ids that it may go by: its own, and what it was made from
    model_type: str | None = None
    revision: str | None = None


def digest_texts(texts: Mapping[str, bytes]) -> dict[str, str]:
    """File name -> digest of its text."""
    return {name: digest_bytes(text) for name, text in sorted(texts.items())}


def digest_license_text(texts: Mapping[str, bytes]) -> str | None:
    """One digest: of the only file, or of all names and digests."""
    digests = digest_texts(texts)
    return next(iter(digests.values())) if len(digests) == 1 else digest_json(digests) if digests else None


def read_target_claim(directory: Path, name: str, license: str | None = None) -> TargetClaim:
    """The claim of a target's directory; `license` is what the recipe says. Raises InputError for a damaged card.

    The embedded target has no card: it is known by its place in the package.
    """
    if directory.resolve() == EMBEDDED_TARGET.resolve():
        return TargetClaim(name, license, {"license": "Apache-2.0"}, names=("embedded",))
    card = read_front_matter(directory / "README.md") if (directory / "README.md").is_file() else {}
    texts = {
        path.name: read_license_text(path)
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
        names=tuple(dict.fromkeys(each for each in names if isinstance(each, str) and each)),
        model_type=model_type if isinstance(model_type, str) else None,
        revision=cached[3] if cached else None,
    )


def _read_config(path: Path) -> dict[str, Any]:
    # A target without a configuration is refused elsewhere, with a better reason.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            return value
    return {}
