"""Renders ledger.json as card.md (for reviewers), as croissant.json (for programs), and as a section of a head's card.

The results contain counts, names and decisions, never the text of a record. The templates are in templates/. Equal
ledgers give equal files.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eyas.base.config import flatten_table
from eyas.base.provenance import digest_file
from eyas.base.storage import to_json
from eyas.base.templates import template_environment

BAR_WIDTH = 30  # characters
MAX_ROWS = 50  # of one table; ledger.json has all rows
DISCLAIMER = "eyas records what cards, files and recipes state, and applies a policy to it. This is no legal advice."
# Names are untrusted: escaped, they cannot end a table cell, begin a line or open a tag.
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "`": "&#96;", "](": "]&#40;"}


def render_card(ledger: Mapping[str, Any]) -> str:
    """Renders card.md: Markdown with the YAML front matter of a dataset card. ledger: ledger.json, schema 2."""
    sources = ledger["sources"]
    edges, counts = ledger["lengths"]["edges"], ledger["lengths"]["counts"]
    bounds = [f"{low} to {high - 1}" for low, high in itertools.pairwise(edges)]
    lengths = dict(zip([*bounds, f"{edges[-1]} and more"], counts, strict=False))
    unverified = {fact["text"] for source in sources for fact in source["licence"]["facts"] if not fact["verified"]}
    return _render(
        "card.md.jinja",
        ledger,
        front_matter=_front_matter(ledger),
        reasons=sorted({reason for source in sources for reason in source["dropped"]}),
        gates=[row for counts in (ledger, *(sources if len(sources) > 1 else ())) for row in _gate_rows(counts)],
        missed_names=_count_missed_names(ledger),
        files=[(source["name"], *file) for source in sources for file in source["files"].items()],
        charts=[
            ("language", _bars(dict(Counter(ledger["languages"]).most_common()))),
            ("task", _bars(dict(Counter(ledger["tasks"]).most_common()))),
            ("characters", _bars(lengths)),
        ],
        settings_rows=[*_flat_rows(ledger["digests"]), *_flat_rows(ledger["settings"])],
        num_unverified=len(unverified),
    )


def render_data_section(ledger: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """Renders the section on data and licenses in the card of a trained head, as Markdown.

    Args:
        ledger: ledger.json, schema 2.
        target: `LicenseDecision.to_json()` of the target.
    """
    decisions = [target, *(source["licence"] for source in ledger["sources"])]
    prefixes = (each["name_prefix"] for each in decisions if each["name_prefix"])
    name_prefix = max(sorted(prefixes), key=len, default=None)
    return _render("head_data.md.jinja", ledger, target=target, name_prefix=name_prefix)


def render_croissant(ledger: Mapping[str, Any], path: Path, name: str, creator: str, date_published: str) -> bytes:
    """Renders croissant.json, which describes a dataset in the Croissant format.

    Args:
        ledger: ledger.json.
        path: The file of prompts, in the directory of croissant.json.
        name: The name of the dataset.
        creator: The organization that publishes it.
        date_published: YYYY-MM-DD.
    """
    text = _render(
        "croissant.json.jinja",
        ledger,
        file={"name": path.name, "digest": digest_file(path), "num_bytes": path.stat().st_size},
        name=name,
        licenses=list_licenses(ledger),
        creator=creator,
        date_published=date_published,
    )
    return to_json(json.loads(text))


def list_licenses(ledger: Mapping[str, Any]) -> list[str]:
    """Returns the licenses of all sources: SPDX ids as URLs, OR expressions and LicenseRef-* unchanged."""
    expressions = {source["licence"]["spdx"] for source in ledger["sources"]}
    parts = {part for spdx in expressions for part in ([spdx] if " OR " in spdx else spdx.split(" AND "))}
    is_listed = re.compile(r"(?!LicenseRef-)[A-Za-z0-9.+-]+").fullmatch
    return sorted(f"https://spdx.org/licenses/{part}" if is_listed(part) else part for part in parts)


# --- values of the templates -----------------------------------------------------------------------------------------


def _front_matter(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the front matter of card.md, with the keys that the Hugging Face hub reads on dataset cards."""
    licenses = list(dict.fromkeys(source["licence"]["spdx"] for source in ledger["sources"]))
    if len(licenses) == 1 and "LicenseRef-" not in licenses[0] and " " not in licenses[0]:
        stated = {"license": licenses[0].lower()}
    else:
        joined = " AND ".join(f"({each})" if " OR " in each else each for each in licenses)
        stated = {"license": "other", "license_name": joined}
    public = dict.fromkeys(source["licence"]["dataset"] or "original" for source in ledger["sources"])
    return {
        "pretty_name": "Prompts",
        **stated,
        "language": sorted(ledger["languages"]),
        "source_datasets": list(public),
        "tags": ["eyas", "prompts"],
    }


def _gate_rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int, int, int]]:
    """Yields (source, gate, in, dropped, changed, out) of each gate. counts: ledger.json or its entry of a source."""
    left = counts["came"]
    for gate, each in counts.get("gates", {}).items():  # ledgers of older runs have no gates
        yield counts.get("name", "all sources"), gate, left, each["dropped"], each["changed"], left - each["dropped"]
        left -= each["dropped"]


def _count_missed_names(ledger: Mapping[str, Any]) -> dict[str, int]:
    """Returns the kept prompts of each language in which the detectors find no names."""
    searched = ledger["detectors"].get("name_languages", [])
    found = {"unknown", *searched}
    return {name: count for name, count in sorted(ledger["languages"].items()) if searched and name not in found}


def _bars(counts: Mapping[str, int]) -> list[tuple[str, int, str, str]]:
    """Returns the rows of a bar chart: (name, count, share, bar). The bar of the largest count has 30 characters."""
    most, total = max(counts.values(), default=0) or 1, sum(counts.values()) or 1
    return [(name, num, f"{num / total:.1%}", "█" * -(-BAR_WIDTH * num // most)) for name, num in counts.items()]


def _flat_rows(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the keys and values of nested settings: {"quality": {"min_chars": 3}} -> [("quality.min_chars", "3")]."""
    flat = sorted(flatten_table(table).items())
    return [(key, value if isinstance(value, str) else _compact_json(value)) for key, value in flat]


def _collect_duties(decisions: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns each license duty with the names of the sources and targets that require it."""
    duties = [duty for each in decisions for duty in each["duties"]]
    return {duty: list(dict.fromkeys(each["name"] for each in decisions if duty in each["duties"])) for duty in duties}


def _collect_facts(decisions: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the facts of all decisions, each with the name of its source or target, without repeats."""
    facts = {(each["name"], _compact_json(fact)): fact for each in decisions for fact in each["facts"]}
    return [(name, fact) for (name, _), fact in facts.items()]


# --- Markdown --------------------------------------------------------------------------------------------------------


def _render(template: str, ledger: Mapping[str, Any], **values: Any) -> str:
    text = _environment().get_template(template).render({**ledger, **values}, disclaimer=DISCLAIMER)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment() -> jinja2.Environment:
    """Returns a jinja environment that escapes all values for Markdown tables, except values of type Markup."""
    environment = template_environment("eyas.data.ledger", autoescape=True, finalize=_escape)
    filters: dict[str, Callable[..., Any]] = {
        "code": _code,
        "counts": lambda counts: ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())),
        "first_rows": lambda rows: list(rows)[:MAX_ROWS],
        "json": lambda value: Markup(_compact_json(value)),
        "license_texts": _license_texts,
        "more_rows": lambda rows: f"{len(rows) - MAX_ROWS:,} more are in ledger.json." if len(rows) > MAX_ROWS else "",
    }
    environment.filters |= filters
    environment.globals |= {"collect_duties": _collect_duties, "collect_facts": _collect_facts}
    return environment


def _escape(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    text = f"{value:,}" if isinstance(value, int) else "" if value is None else " ".join(str(value).split())
    for chars, escaped in ESCAPES.items():
        text = text.replace(chars, escaped)
    return Markup(text)


def _code(value: object) -> Markup:
    """Returns the value as a Markdown code span; backticks in the value do not end it."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return Markup(f"`{text}`")


def _license_texts(decision: Mapping[str, Any]) -> Markup:
    texts = [f"{_escape(name)} {_code(digest)}" for name, digest in sorted(decision["license_files"].items())]
    if decision["license_link"]:
        texts.append(f"linked at {_code(decision['license_link'])}")
    return Markup(", ".join(texts))


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
