"""Writes the page of the shipped license policy for make_reference: verdicts on sets, targets, authors, licenses."""

from collections.abc import Callable, Iterable, Sequence

from eyas.data.licenses.license_policy import Fact, LicensePolicy

INTRODUCTION = """
Look up here the verdict of the shipped license policy on a data set, a target, an author of prompts or a license.
The verdict allow accepts, deny rejects, and acknowledge accepts only with `--acknowledge NAME`. A license that is "not
named" is rejected. [How the gate decides](../licenses.md) explains the rules and how to change them.

Each fact names its source and the day on which it was looked up. "Background knowledge, not looked up again" means that
no source was read on that day. Licenses change, so check the facts yourself. This is not legal advice."""


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
    fact = "fact (source, date)"
    for title, columns, rows in (
        ("Public data sets", ("data set", "ids", "license", "author of the prompts", "verdict", "reason", fact), sets),
        ("Targets", ("model family", "license", "verdict", fact), targets),
        ("Authors of prompts", ("id", "author", "verdict on prompts", fact), generators),
        ("Licenses", ("id", "name", "verdict on prompts", "verdict on a target"), licenses),
    ):
        lines += ["", f"## {title}", "", *write_table(columns, rows)]
    return "\n".join(lines) + "\n"


def _describe_fact(found: Fact | None) -> str:
    if found is None:
        return ""
    again = "" if found.verified else ", not looked up again"
    return f"{found.text} ({found.source}, {found.looked_up}{again})"
