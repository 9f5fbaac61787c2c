"""Writes the tables of docs/licenses.md from the shipped TOML: `python -m tests.data.licenses.docs_tables`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from eyas.data.licenses.license_policy import Fact, LicensePolicy

DOCS = Path(__file__).parents[3] / "docs" / "licenses.md"


def rendered(text: str) -> str:
    """The page with every table between `<!-- table: name -->` and `<!-- end -->` as the TOML has it."""
    for name, lines in tables().items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, lines=lines: f"{found[1]}\n{lines}\n\n{found[2]}", text)
        assert count == 1, f"{count} places for the table {name}"
    return text


def tables() -> dict[str, str]:
    policy = LicensePolicy.load()
    known, verdicts = policy.tables, policy.verdicts
    licenses = [
        (
            f"`{entry.id}`",
            entry.name,
            verdicts["licenses"].get(entry.id, "not named"),
            verdicts["targets"].get(entry.id, "not named"),
        )
        for entry in known.license
    ]
    generators = [
        (f"`{family.id}`", family.name, verdicts["generators"][family.id], fact(family.fact))
        for family in known.generator
    ]
    sets = [
        (
            found.name,
            " ".join(f"`{name}`" for name in found.ids),
            f"`{found.license}`" + (f" since {found.since}" if found.since else "") if found.license else "",
            ", ".join(found.authors),
            found.verdict,
            found.why,
            fact(found.fact),
        )
        for found in known.dataset
    ]
    targets = [
        (family.name, f"`{family.license}`", verdicts["targets"][family.license], fact(family.fact))
        for family in known.target
    ]
    return {
        "licences": table(("id", "name", "prompts", "target"), licenses),
        "generators": table(("id", "who", "prompts", "what was known"), generators),
        "sets": table(("set", "ids", "licence", "written by", "verdict", "why", "what was known"), sets),
        "targets": table(("family", "licence", "verdict", "what was known"), targets),
    }


def fact(found: Fact | None) -> str:
    if found is None:
        return ""
    again = "" if found.verified else ", not looked up again"
    return f"{found.text} ({found.source}, {found.looked_up}{again})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    DOCS.write_text(rendered(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
