"""Writes the page of the shipped license policy for make_reference: verdicts on sets, targets, authors, licenses."""

from collections.abc import Callable, Iterable, Sequence

from eyas.data.licenses.license_policy import Fact, LicensePolicy

INTRODUCTION = """
Look up here what the license policy that ships with eyas says of a data set, a target, an author of prompts or a
license. [How the gate decides](../licenses.md) explains the verdicts and how to change them.

Facts have a source and the day on which they were looked up. "Not looked up again" marks background knowledge. Facts
are part of the policy's digest. Licenses change, so check what matters to you. This is not legal advice."""


def write_license_page(
    generated: str, write_table: Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]
) -> str:
    """Returns the page.

    Args:
        generated: The comment that marks a generated page.
        write_table: Returns the lines of a table with these titles and rows.
    """
    policy = LicensePolicy.load()
    known, verdicts = policy.tables, policy.verdicts
    sets = [
        (
            found.name,
            " ".join(f"`{name}`" for name in found.ids),
            f"`{found.license}`" + (f" since {found.since}" if found.since else "") if found.license else "",
            ", ".join(found.authors),
            found.verdict,
            found.why,
            _describe_fact(found.fact),
        )
        for found in known.dataset
    ]
    targets = [
        (family.name, f"`{family.license}`", verdicts["targets"][family.license], _describe_fact(family.fact))
        for family in known.target
    ]
    generators = [
        (f"`{family.id}`", family.name, verdicts["generators"][family.id], _describe_fact(family.fact))
        for family in known.generator
    ]
    licenses = [
        (
            f"`{entry.id}`",
            entry.name,
            verdicts["licenses"].get(entry.id, "not named"),
            verdicts["targets"].get(entry.id, "not named"),
        )
        for entry in known.license
    ]
    lines = ["# The shipped license policy", generated, *INTRODUCTION.splitlines()]
    lines += ["", "## Public sets", ""]
    lines += write_table(("set", "ids", "license", "written by", "verdict", "why", "what was known"), sets)
    lines += ["", "## Targets", "", *write_table(("family", "license", "verdict", "what was known"), targets)]
    lines += ["", "## Authors of prompts", "", *write_table(("id", "who", "prompts", "what was known"), generators)]
    lines += ["", "## Licenses", "", *write_table(("id", "name", "prompts", "target"), licenses)]
    return "\n".join(lines) + "\n"


def _describe_fact(found: Fact | None) -> str:
    if found is None:
        return ""
    again = "" if found.verified else ", not looked up again"
    return f"{found.text} ({found.source}, {found.looked_up}{again})"
