"""Part `labeled` of `make prove-data`: measures recall and precision on public texts with marked names and numbers.

Presidio's recognizers run on the same sentences in an environment below PEERS. With `names = "all"` no recall of
persons may be below that of the filter before it told private from public names (privacy_texts/baseline.json).
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_detection import KEY, filter_config
from data_options import Options
from marked_texts import NEWS, OWN_NEWS, Mark, MarkedText, medical_notes, news_sentences, research_sentences
from presidio_peer import run_presidio
from result_rows import Row
from shares import share_row
from span_scores import HALF, WHOLE, count_found, count_right
from text_sets import FOLDER

BASELINE = FOLDER / "baseline.json"
MODES = ("private", "all")
# Kinds of presidio-research, and the share of a value that must be found.
RESEARCH = {
    "persons": (("PERSON",), WHOLE),
    "addresses": (("ADDRESS", "LOCATION"), HALF),
    "phones": (("PHONE",), WHOLE),
    "e-mails": (("EMAIL",), WHOLE),
    "cards": (("CARD",), WHOLE),
    "government ids": (("GOVERNMENT_ID",), WHOLE),
    "accounts": (("ACCOUNT",), WHOLE),
    "IP addresses": (("IP_ADDRESS",), WHOLE),
}
MEDICAL = {"persons": ("PERSON",), "ids": ("ID",), "places": ("PLACE",)}


def labeled(options: Options) -> Iterator[Row]:
    """Yields the rows of presidio-research, of the Spanish medical notes and of the news sentences."""
    if options.data is None:
        yield Row("labeled: recall on marked texts", None, "a figure: --data names the directory", False)
        return
    if "en" in options.languages:
        yield from _research(options, options.data)
    if "es" in options.languages:
        texts = medical_notes(options.data, options.half)
        for names in MODES:
            found = find_spans(texts, names)
            for what, kinds in MEDICAL.items():
                right, total = count_found(texts, found, kinds, WHOLE)
                bound = baseline(options, "meddocan-es") if (names, what) == ("all", "persons") else None
                yield share_row(f"labeled, names={names}: {what} found in meddocan-es", right, total, bound)
    for file in NEWS + OWN_NEWS:
        if file.split("-")[1] in options.languages:
            yield from _news(options, options.data, file)


def find_spans(texts: Sequence[MarkedText], names: str) -> list[list[Mark]]:
    """Returns what the filter finds in each text."""
    from eyas.privacy.filter import PrivacyFilter

    found = PrivacyFilter(filter_config(names), key=KEY).detect([((text.text,), text.language) for text in texts])
    return [[Mark(span.start, span.end, span.kind) for span in record[0]] for record in found]


def baseline(options: Options, name: str) -> float | None:
    """Returns the recall of persons of the old filter on one half of a set, or None if it has none."""
    figures = json.loads(BASELINE.read_text("utf-8"))["persons"][options.half]
    return figures[name]["found"] / figures[name]["marked"] if name in figures else None


def _research(options: Options, data: Path) -> Iterator[Row]:
    texts = research_sentences(data, options.half)
    found = {f"names={names}": find_spans(texts, names) for names in MODES}
    if peer := run_presidio([(text.text, text.language) for text in texts], options):
        found["Presidio"] = peer
    for what, (kinds, share) in RESEARCH.items():
        for tool in (*found, *(() if "Presidio" in found else ("Presidio",))):
            name = f"labeled, {tool}: {what} of presidio-research-synth"
            bound = baseline(options, "presidio-research-synth") if (tool, what) == ("names=all", "persons") else None
            finds_kind = tool in found and any(span.kind in kinds for spans in found[tool] for span in spans)
            if tool == "Presidio" and not finds_kind:
                yield Row(f"{name} found", None, "told; not measured", True)
                continue
            yield share_row(f"{name} found", *count_found(texts, found[tool], kinds, share), bound)
            yield share_row(f"{name}: found spans that are right", *count_right(texts, found[tool], kinds))


def _news(options: Options, data: Path, file: str) -> Iterator[Row]:
    texts = news_sentences(data, options.half, file)
    if not texts:
        yield Row(f"labeled: persons found in {file}", None, "a figure: --data names the directory", False)
        return
    every, private = (find_spans(texts, names) for names in ("all", "private"))
    right, total = count_found(texts, every, ("PERSON",), WHOLE)
    yield share_row(f"labeled, names=all: persons found in {file}", right, total, baseline(options, file))
    yield share_row(f"labeled, names=private: texts changed in {file}", sum(map(bool, private)), len(texts))
    for names, found in (("all", every), ("private", private)):
        right, total = count_right(texts, found, ("PERSON",))
        yield share_row(f"labeled, names={names}: spans of persons that are marked ones in {file}", right, total)
