"""card.md: what a reviewer reads before these prompts are used; and the part of a head's card that is about its data.

Both are made from ledger.json alone: counts, names and decisions, never a record's content. Equal ledgers give equal
bytes.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BAR_WIDTH = 30  # characters
MAX_ROWS = 50  # of one table; the ledger has them all
DUPLICATES = ("duplicate", "near_duplicate")
NO_ADVICE = "eyas records what it was told and what it knew, and gates by a policy. This is no legal advice."


def render_card(ledger: Mapping[str, Any]) -> str:
    """Markdown with the YAML head of a dataset card. ledger: ledger.json, schema 2."""
    parts = [
        _head(ledger),
        _summary(ledger),
        _licences(ledger["sources"]),
        _sources(ledger["sources"]),
        _entities(ledger),
        _contents(ledger),
        _duplicates(ledger),
        _contamination(ledger["contamination"]),
        _traffic(ledger["traffic"]),
        _settings(ledger),
        _not_done(ledger),
    ]
    return "\n\n".join(parts) + "\n"


def render_data_section(ledger: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    """The part on data and licences of a head's card. target: `Decision.to_json()` of the target."""
    decisions = [source["licence"] for source in ledger["sources"]]
    prefixes = sorted({each["name_prefix"] for each in (target, *decisions) if each["name_prefix"]}, key=len)
    named = f"\n\nThe name of this head must begin with **{_text(prefixes[-1])}**." if prefixes else ""
    rows = [
        (source["name"], decision["dataset"] or "", decision["revision"] or "", decision["spdx"], source["kept"])
        for source, decision in zip(ledger["sources"], decisions, strict=True)
    ]
    return f"""## Data and licences

The target's answers trained this head. What is known of its licence, and of that of the prompts:{named}

{_decisions([target])}

It answered {ledger["kept"]:,} prompts, kept of {ledger["came"]:,} by the policy '{_text(ledger["policy"]["name"])}':

{_table(("source", "public set", "revision", "licence", "prompts"), rows)}

{_duties([target, *decisions])}

{_acknowledged([target, *decisions])}

What was known, and when:

{_facts([target, *decisions])}

{NO_ADVICE}
"""


# --- parts of the card -----------------------------------------------------------------------------------------------


def _head(ledger: Mapping[str, Any]) -> str:
    """As the hub's dataset cards begin; every value is a JSON string, which YAML reads as it is."""
    licenses = list(dict.fromkeys(source["licence"]["spdx"] for source in ledger["sources"]))
    public = [source["licence"]["dataset"] or "original" for source in ledger["sources"]]
    if len(licenses) == 1 and "LicenseRef-" not in licenses[0] and " " not in licenses[0]:
        license_lines = [f"license: {json.dumps(licenses[0].lower())}"]
    else:
        joined = " AND ".join(f"({each})" if " OR " in each else each for each in licenses)
        license_lines = ["license: other", f"license_name: {json.dumps(joined)}"]
    lists = {"language": sorted(ledger["languages"]), "source_datasets": public, "tags": ["eyas", "prompts"]}
    lines = ["---", 'pretty_name: "Prompts"', *license_lines]
    for key, values in lists.items():
        lines.append(f"{key}: {json.dumps(list(dict.fromkeys(values)), ensure_ascii=False)}")
    return "\n".join([*lines, "---"])


def _summary(ledger: Mapping[str, Any]) -> str:
    over = ledger["over_limit"]
    rows = [
        ("records read", ledger["came"]),
        ("dropped", sum(ledger["dropped"].values())),
        (f"good, but over the limit of {ledger['limit']}" if ledger["limit"] else "good, but not chosen", over),
        ("**prompts kept**", ledger["kept"]),
        ("answers of the sources thrown away", ledger["answers_thrown_away"]),
    ]
    return f"""# Prompts

Prompts for a target to answer, so that a draft head learns from its answers. Only what users said (and system messages,
where the settings say so) is kept; what other models or people answered is not.

{_table(("", "records"), rows)}"""


def _licences(sources: Sequence[Mapping[str, Any]]) -> str:
    decisions = [source["licence"] for source in sources]
    return f"""## Licences

{_decisions(decisions)}

{_duties(decisions)}

{_acknowledged(decisions)}

What was known, and when:

{_facts(decisions)}"""


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            source["name"],
            source["format"],
            _counts(source["shapes"]),
            source["came"],
            source["kept"],
            sum(entry["count"] for entry in source["dropped"].values()),
            source["over_limit"],
        )
        for source in sources
    ]
    reasons = sorted({reason for source in sources for reason in source["dropped"]})
    names = [source["name"] for source in sources]
    dropped = [
        (_code(reason), *(source["dropped"].get(reason, {"count": 0})["count"] for source in sources))
        for reason in reasons
    ]
    files = [(source["name"], name, _code(digest)) for source in sources for name, digest in source["files"].items()]
    return f"""## Sources

{_table(("source", "format", "record shapes", "in", "out", "dropped", "over the limit"), rows)}

Dropped, by reason:

{_table(("reason", *names), dropped) if dropped else "Nothing."}

{_table(("source", "file", "digest"), files)}"""


def _entities(ledger: Mapping[str, Any]) -> str:
    rows = [(kind, found["replaced"], found["dropped"]) for kind, found in sorted(ledger["entities"].items())]
    table = _table(("kind", "replaced by a surrogate", "records dropped for it"), rows) if rows else "None was found."
    return f"""## Personal data and secrets

Detectors: {", ".join(map(_text, ledger["detectors"]["names"])) or "none"}.
No value that was found is in this card, in the ledger or in a log.

{table}"""


def _contents(ledger: Mapping[str, Any]) -> str:
    edges, counts = ledger["lengths"]["edges"], ledger["lengths"]["counts"]
    bounds = [f"{low} to {high - 1}" for low, high in itertools.pairwise(edges)]
    names = [*bounds, f"{edges[-1]} and more"][: len(counts)]
    return f"""## What is in them

Languages:

{_bars("language", ledger["languages"])}

Tasks:

{_bars("task", ledger["tasks"])}

Characters of a prompt:

{_bars("characters", dict(zip(names, counts, strict=True)), by_count=False)}"""


def _duplicates(ledger: Mapping[str, Any]) -> str:
    found = {reason: ledger["dropped"].get(reason, 0) for reason in DUPLICATES}
    total = sum(found.values())
    share = f" ({total / ledger['came']:.1%} of what came)" if ledger["came"] else ""
    return f"""## Duplicates

Of records that are equal or nearly so, also in different sources, one is kept. {total:,} were dropped{share}:
{found["duplicate"]:,} equal, {found["near_duplicate"]:,} nearly equal."""


def _contamination(hits: Mapping[str, int]) -> str:
    rows = sorted(hits.items())
    table = _table(("evaluation set", "records dropped"), rows) if rows else "No record shared text with one."
    return f"""## Evaluation sets

Records that share long runs of words with a set on which heads are measured are dropped, or the figures would flatter.

{table}"""


def _traffic(traffic: Mapping[str, Any] | None) -> str:
    title = "## Likeness to production traffic\n\n"
    if traffic is None:
        return title + "No production log was named, so nothing is known of it."
    compared = [*traffic["sources"].items()]
    compared += [("all, before the choice", traffic["before"]), ("**all, as kept**", traffic["after"])]
    rows = [(name, f"{each['tv']:.3f}", f"{each['ks']:.3f}") for name, each in compared]
    short = traffic["shortfall"]
    total = sum(each["wanted"] - each["got"] for each in short)
    told = "No cell is short."
    if short:
        cells = _table(("cell", "wanted", "got"), [(each["cell"], each["wanted"], each["got"]) for each in short])
        told = f"{total:,} prompts that the traffic asks for were not there:\n\n{cells}"
    return f"""{title}Compared with {traffic["production"]["prompts"]:,} production prompts, of which only hashed
features and counts were kept. 0 is alike, 1 is foreign: total variation of the topics, Kolmogorov-Smirnov distance of
the lengths.

{_table(("prompts", "topics", "lengths"), rows)}

{told}"""


def _settings(ledger: Mapping[str, Any]) -> str:
    rows = [
        ("policy", ledger["policy"]["name"]),
        ("policy digest", _code(ledger["policy"]["digest"])),
        ("detectors digest", _code(ledger["detectors"]["digest"])),
        ("seed", _code(ledger["seed"])),
        ("limit", _code(ledger["limit"] or "none")),
        *((name, _code(value)) for name, value in sorted(_flat(ledger["digests"]).items())),
        *((name, _code(value)) for name, value in sorted(_flat(ledger["settings"]).items())),
    ]
    return f"## Settings and digests\n\n{_table(('', ''), rows)}"


def _not_done(ledger: Mapping[str, Any]) -> str:
    unverified = sorted(
        {fact["text"] for source in ledger["sources"] for fact in source["licence"]["facts"] if not fact["verified"]}
    )
    points = [
        NO_ADVICE,
        "Licences were taken as cards, files and the recipe state them; whether that was theirs to say was not looked "
        "into.",
        "Detectors miss some of what they look for, so the prompts may still hold personal data.",
        "Nobody read the prompts one by one, and nothing was judged by truth, taste or safety beyond the rules above.",
    ]
    if unverified:
        points.append(
            f"{len(unverified)} of the facts on licences are background knowledge that was not looked up again."
        )
    if ledger["traffic"] is None:
        points.append("The prompts were not compared with production traffic.")
    return "## What was not done\n\n" + "\n".join(f"* {point}" for point in points)


# --- licences --------------------------------------------------------------------------------------------------------


def _decisions(decisions: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for each in decisions:
        texts = ", ".join(f"{_text(name)} {_code(digest)}" for name, digest in sorted(each["license_files"].items()))
        if each["license_link"]:
            texts += f"{', ' if texts else ''}linked at {_code(each['license_link'])}"
        row = (each["name"], each["dataset"] or "", each["revision"] or "", each["spdx"], each["verdict"])
        rows.append((*row, each["reason"], _Raw(texts)))
    return _table(("name", "public set", "revision", "licence", "decision", "why", "its texts"), rows)


def _duties(decisions: Iterable[Mapping[str, Any]]) -> str:
    duties: dict[str, list[str]] = {}
    for each in decisions:
        for duty in each["duties"]:
            duties.setdefault(duty, []).append(each["name"])
    lines = [f"* {_text(duty)} ({', '.join(map(_text, dict.fromkeys(names)))})" for duty, names in duties.items()]
    return "Duties:\n\n" + "\n".join(lines) if lines else "No duties are known."


def _acknowledged(decisions: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (each["name"], given["who"], given["when"], _code(given["claim"]))
        for each in decisions
        if (given := each["acknowledgement"]) is not None
    ]
    table = _table(("for", "who answers for it", "since", "claim"), rows)
    return table if rows else "Nothing needed an acknowledgement."


def _facts(decisions: Iterable[Mapping[str, Any]]) -> str:
    lines: dict[str, None] = {}
    for each in decisions:
        for fact in each["facts"]:
            again = "" if fact["verified"] else ", not looked up again"
            lines[
                f"* {_text(each['name'])}: {_text(fact['text'])} ({_text(fact['source'])}, {fact['looked_up']}{again})"
            ] = None
    return "\n".join(lines) or "Nothing beyond what the cards and the recipe say."


# --- Markdown --------------------------------------------------------------------------------------------------------


class _Raw(str):
    """Markdown that is one already."""


def _text(value: object) -> str:
    """Names come from others: nothing in them may end a cell, begin a line or open a tag."""
    text = " ".join(str(value).split())
    for chars, instead in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "&#124;"),
        ("`", "&#96;"),
        ("](", "]&#40;"),
    ):
        text = text.replace(chars, instead)
    return text


def _code(value: object) -> _Raw:
    """As a code span, which no backtick may close."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return _Raw(f"`{text}`")


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        if isinstance(value, int):
            return f"{value:,}"
        return value if isinstance(value, _Raw) else _text(value)

    shown = list(rows)
    more = f"\n\n{len(shown) - MAX_ROWS:,} more stand in ledger.json." if len(shown) > MAX_ROWS else ""
    cells = [[cell(value) for value in row] for row in shown[:MAX_ROWS]]
    lines = [[cell(name) for name in header], ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _bars(title: str, counts: Mapping[str, int], by_count: bool = True) -> str:
    """A chart in text: a bar as long as the share of the largest, and never none for some."""
    if not counts:
        return "None."
    most, total = max(counts.values()), sum(counts.values())
    rows = [
        (name, count, f"{count / total:.1%}" if total else "", "█" * (-(-BAR_WIDTH * count // most) if most else 0))
        for name, count in (
            sorted(counts.items(), key=lambda item: (-item[1], item[0])) if by_count else counts.items()
        )
    ]
    return _table((title, "prompts", "share", ""), rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Nested settings as dotted names with JSON values."""
    flat: dict[str, str] = {}
    for name, inner in value.items():
        dotted = f"{above}.{name}" if above else name
        if isinstance(inner, Mapping):
            flat |= _flat(inner, dotted)
        else:
            flat[dotted] = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
    return flat
