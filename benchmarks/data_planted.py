"""Part `planted` of `make prove-data`: measures how many texts with private values keep none of them.

The templates were written without knowledge of the filter; the values come from public descriptions of formats
(benchmarks/planted). Seeds 0 to 9 are open and serve development. The last figures use another seed, which `--seed`
gives.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from changes import ChangeLog, Written
from data_detection import run_filter
from data_options import Options
from planted.fill import FilledText, fill
from planted.survival import PlantedValue, survives
from presidio_peer import NAME_SLOTS, blank, run_presidio
from result_rows import Row
from shares import share_row
from text_sets import FIRST_LANGUAGES, NEW_LANGUAGES, TextSet, sets_of

FILLINGS = 6  # of each template
OPEN_SEEDS = range(10)
MIN_FIRST, MIN_NEW, MIN_KEPT = 0.985, 0.95, 0.95
# Kinds of which nothing may survive in any language.
STRICT = {
    "cards": ("card",),
    "accounts": ("iban", "account"),
    "government ids": ("government_id", "passport", "driving_license"),
    "secrets": ("password", "api_key", "pin", "cookie"),
}
SOFT = frozenset({"person", "first", "last", "phone", "email", "obfuscated_email"})


@dataclass(frozen=True)
class Outcome:
    """The result of one text: whether the record was dropped, and what survived."""

    filled: FilledText
    is_dropped: bool
    survivors: tuple[PlantedValue, ...]


def make_texts(texts: TextSet, seed: int) -> list[FilledText]:
    """Fills each template of one language and half several times. The same seed gives the same texts."""
    return [
        fill(template.group, template.text, texts, Random(f"{seed} {template.group} {number}"))
        for template in texts.planted
        for number in range(FILLINGS)
    ]


def judge(filled: FilledText, written: Written) -> Outcome:
    """Judges what the filter made of a text. A dropped record is right."""
    if written is None:
        return Outcome(filled, True, ())
    left = tuple(value for value in filled.planted if survives(value, written[0], filled.fixed))
    return Outcome(filled, False, left)


def planted(options: Options) -> Iterator[Row]:
    """Yields the rows of recall: of the languages, of the kinds, and of the records that are kept."""
    log = ChangeLog(options.show_file, options.half == "develop")
    is_open = options.seed in OPEN_SEEDS
    if options.half == "develop" and not is_open:
        raise SystemExit(f"--seed {options.seed}: --half develop takes the open seeds 0 to {OPEN_SEEDS[-1]}")
    print(f"seed of the planted values: {options.seed}{', an open one' * is_open}", file=sys.stderr, flush=True)
    made = [one for texts in sets_of(options.languages, options.half) for one in make_texts(texts, options.seed)]
    written = list(run_filter([((one.text,), one.language) for one in made]))
    outcomes = [judge(one, after) for one, after in zip(made, written, strict=True)]
    for outcome, after in zip(outcomes, written, strict=True):
        if outcome.survivors:
            left = ", ".join(f"{value.slot} {value.value!r}" for value in outcome.survivors)
            log.add(outcome.filled.template, [outcome.filled.text], after, f"SURVIVES: {left}")
        elif outcome.is_dropped and outcome.filled.slots <= SOFT:
            log.add(outcome.filled.template, [outcome.filled.text], after, "DROPPED, has only names, phones, mail")
    yield from recall_rows(outcomes)
    if found := run_presidio([(one.text, one.language) for one in made], options):
        peer = [judge(one, (blank(one.text, spans),)) for one, spans in zip(made, found, strict=True)]
        for slot in sorted({slot for one in made for slot in one.slots}):
            is_measured = options.model is not None or slot not in NAME_SLOTS
            gone = _gone(peer, (slot,)) if is_measured else (0, 0)
            yield share_row(f"planted, Presidio: values of {slot} that are gone", *gone)
    text = kind_table(outcomes)
    print(text, file=sys.stderr)
    if options.tables:
        options.tables.write_text(text + "\n", "utf-8")


def recall_rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """Yields the rows with targets, then the recall of each language and each kind."""
    for name, languages, bound in (
        ("the nine languages", FIRST_LANGUAGES, MIN_FIRST),
        ("the six new languages", NEW_LANGUAGES, MIN_NEW),
    ):
        some = [outcome for outcome in outcomes if outcome.filled.language in languages]
        if some:
            yield share_row(f"planted: texts of which nothing survives in {name}", _clean(some), len(some), bound)
    for name, slots in STRICT.items():
        gone, total = _gone(outcomes, slots)
        yield share_row(f"planted: {name} that are gone", gone, total, 1.0)
    soft = [outcome for outcome in outcomes if outcome.filled.slots <= SOFT]
    name = "planted: texts with only names, phones and mail kept with surrogates"
    yield share_row(name, _kept(soft), len(soft), MIN_KEPT)
    for language in dict.fromkeys(outcome.filled.language for outcome in outcomes):
        some = [outcome for outcome in outcomes if outcome.filled.language == language]
        yield share_row(f"planted: texts of which nothing survives in {language}", _clean(some), len(some))
        some = [outcome for outcome in some if outcome.filled.slots <= SOFT]
        yield share_row(f"planted: texts with only names, phones and mail kept in {language}", _kept(some), len(some))
    for slot in sorted({slot for outcome in outcomes for slot in outcome.filled.slots}):
        yield share_row(f"planted: values of {slot} that are gone", *_gone(outcomes, (slot,)))


def kind_table(outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table of recall by kind and language: values that are gone, of all."""
    counts = defaultdict[str, Counter[str]](Counter)
    left = defaultdict[str, Counter[str]](Counter)
    for outcome in outcomes:
        for value in outcome.filled.planted:
            counts[value.slot][outcome.filled.language] += 1
            left[value.slot][outcome.filled.language] += value in outcome.survivors
    languages = list(dict.fromkeys(outcome.filled.language for outcome in outcomes))
    lines = ["| kind | " + " | ".join(languages) + " |", "| --- |" + " ---: |" * len(languages)]
    for slot in sorted(counts):
        cells = (f"{counts[slot][one] - left[slot][one]}/{counts[slot][one]}" for one in languages)
        lines.append(f"| {slot} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _clean(outcomes: Sequence[Outcome]) -> int:
    return sum(not outcome.survivors for outcome in outcomes)


def _kept(outcomes: Sequence[Outcome]) -> int:
    return sum(not outcome.is_dropped and not outcome.survivors for outcome in outcomes)


def _gone(outcomes: Sequence[Outcome], slots: Sequence[str]) -> tuple[int, int]:
    total = sum(value.slot in slots for outcome in outcomes for value in outcome.filled.planted)
    left = sum(value.slot in slots for outcome in outcomes for value in outcome.survivors)
    return total - left, total
