"""Parts `detection` and `real` of `make prove-data`: measures the recall and false positives of the filter."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pii_set
from data_options import Options
from pii_names import faker_words, parts
from pii_score import Outcome, recall, score_text
from pii_set import LANGUAGES, LabeledText
from result_rows import Row

if TYPE_CHECKING:
    from eyas.privacy.config import PrivacyConfig

KEY = b"a key for measuring only, no secret"
BATCH = 500
KINDS = ("PERSON", "LOCATION", "ADDRESS", "EMAIL", "PHONE", "CARD", "ACCOUNT", "GOVERNMENT_ID", "SECRET", "IP_ADDRESS")
ALWAYS = ("SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID")
SOFT = frozenset({"PERSON", "LOCATION", "EMAIL", "PHONE"})
REAL = {"gsm8k-train": "question", "mt-bench": "turns", "humaneval": "prompt"}  # file -> the key of the user's text
Written = tuple[str, ...] | None  # the texts of a record after the filter; None: the record was dropped


def run_filter(records: Sequence[tuple[tuple[str, ...], str]], names: str = "private") -> Iterator[Written]:
    """Runs the privacy filter over records (texts, language) in batches and yields the result of each.

    Args:
        records: The texts and the language of each record.
        names: The recipe key prompts.privacy.names: "private" replaces names of private persons, "all" all names.
    """
    from eyas.privacy.filter import CleanedRecord, PrivacyFilter

    privacy = PrivacyFilter(filter_config(names), key=KEY)
    for start in range(0, len(records), BATCH):
        for result in privacy.clean(list(records[start : start + BATCH])):
            yield tuple(result.texts) if isinstance(result, CleanedRecord) else None
        print(f"filtered {min(start + BATCH, len(records))} of {len(records)}", file=sys.stderr, flush=True)


def filter_config(names: str) -> "PrivacyConfig":
    """Returns the default settings with this value of prompts.privacy.names."""
    from eyas.privacy.config import PrivacyConfig

    # A filter of a version before that key has one mode only.
    has_modes = "names" in {field.name for field in fields(PrivacyConfig)}
    settings: dict[str, Any] = {"names": names} if has_modes else {}
    return PrivacyConfig(**settings)


def detection(options: Options) -> Iterator[Row]:
    """Yields the rows of the labeled set. Prints the tables to stderr and writes them to --tables."""
    made = pii_set.build_set(options.seed)
    outcomes = score_texts(made, [labeled.language for labeled in made])
    yield from recall_rows(outcomes)
    text = "\n\n".join([*markdown_tables(outcomes), describe_detected_languages(made)]) + "\n"
    print(text, file=sys.stderr)
    print(describe_misses(outcomes), file=sys.stderr)
    if options.tables:
        options.tables.write_text(text, "utf-8")


def score_texts(made: Sequence[LabeledText], languages: Sequence[str]) -> list[Outcome]:
    """Filters the texts as texts of these languages and scores the results."""
    written = run_filter([((labeled.text,), language) for labeled, language in zip(made, languages, strict=True)])
    return [score_text(labeled, texts[0] if texts else None) for labeled, texts in zip(made, written, strict=True)]


def recall_rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """Yields the rows that have a target."""
    planted = [outcome for outcome in outcomes if outcome.labeled.planted]
    clean = [outcome for outcome in outcomes if not outcome.labeled.planted]
    yield _minimum_row(f"texts of which no planted value survives, of {len(planted)}", recall(planted), 0.97)
    for kind in ALWAYS:
        some = [outcome for outcome in planted if kind in outcome.labeled.kinds]
        yield _minimum_row(
            f"texts with {kind} of which none survives, of {len(some)}", _share_without_kind(some, kind), 1.0
        )
    touched = sum(outcome.changed or outcome.dropped for outcome in clean) / len(clean)
    yield Row(f"clean texts changed or dropped, of {len(clean)}", round(touched, 4), "at most 0.03", touched <= 0.03)
    soft = [outcome for outcome in planted if outcome.labeled.kinds <= SOFT]
    kept = sum(outcome.caught and not outcome.dropped for outcome in soft) / len(soft)
    name = f"texts with names, places, e-mail and phones alone that are kept with surrogates, of {len(soft)}"
    yield _minimum_row(name, kept, 0.9)


def markdown_tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields Markdown tables by kind, by language, and by the share of a name that Faker's lists contain."""
    planted = [outcome for outcome in outcomes if outcome.labeled.planted]
    rows = []
    for kind in KINDS:
        some = [outcome for outcome in planted if kind in outcome.labeled.kinds]
        values = sum(value.kind == kind for outcome in some for value in outcome.labeled.planted)
        dropped = sum(outcome.dropped for outcome in some) / len(some) if some else None
        rows.append([kind, str(len(some)), str(values), _share(_share_without_kind(some, kind)), _share(dropped)])
    yield _table(["kind", "texts", "values", "none of the kind survives", "dropped"], rows)
    rows = []
    for language in LANGUAGES:
        own = [outcome for outcome in outcomes if outcome.labeled.language == language]
        some = [outcome for outcome in own if outcome.labeled.planted]
        soft = [outcome for outcome in some if outcome.labeled.kinds <= SOFT]
        clean = [outcome for outcome in own if not outcome.labeled.planted]
        touched = sum(outcome.changed or outcome.dropped for outcome in clean) / len(clean)
        kept = sum(outcome.caught and not outcome.dropped for outcome in soft) / len(soft)
        rows.append([language, str(len(some)), _share(recall(some)), _share(kept), str(len(clean)), _share(touched)])
    head = ["language", "planted", "caught", "names, places, e-mail, phones alone: kept", "clean", "changed or dropped"]
    yield _table(head, rows)
    yield _table(["words of the name in Faker's lists", "names", "gone"], _by_list(planted))


def _by_list(planted: Sequence[Outcome]) -> list[list[str]]:
    came, gone = Counter[str](), Counter[str]()
    for outcome in planted:
        for value in outcome.labeled.planted:
            if value.kind == "PERSON":
                found = {part in faker_words() for part in parts(value.value) if len(part) >= 3}
                group = "some" if len(found) == 2 else "all" if True in found else "none"
                came[group] += 1
                gone[group] += value not in outcome.survivors
    return [[group, str(came[group]), _share(gone[group] / came[group])] for group in ("all", "some", "none")]


def describe_detected_languages(made: Sequence[LabeledText]) -> str:
    """Returns lines about the languages that the pipeline detects, and the recall with these languages."""
    from eyas.data.select.language import detect_language

    languages = [detect_language(labeled.text) for labeled in made]
    pairs = list(zip(made, languages, strict=True))
    wrong = Counter(labeled.language for labeled, language in pairs if language != labeled.language)
    by_language = ", ".join(f"{language} {wrong[language]}" for language in LANGUAGES)
    outcomes = score_texts(made, languages)
    caught = recall([outcome for outcome in outcomes if outcome.labeled.planted])
    clean = [outcome for outcome in outcomes if not outcome.labeled.planted]
    touched = sum(outcome.changed or outcome.dropped for outcome in clean) / len(clean)
    return (
        f"The figures above use the labeled language. The pipeline detects another language in {wrong.total()} of "
        f"{len(made)} texts ({by_language}). With the detected language, {_share(caught)} of the texts are caught and "
        f"{_share(touched)} of the clean texts are changed or dropped."
    )


def describe_misses(outcomes: Sequence[Outcome]) -> str:
    """Returns the templates with missed values and with clean texts that were changed. Names no value."""
    leaks, touched = Counter[str](), Counter[str]()
    for outcome in outcomes:
        place = f"{outcome.labeled.language}/{outcome.labeled.template}"
        for value in outcome.survivors:
            leaks[f"{place}:{value.kind}"] += 1
        if not outcome.labeled.planted and (outcome.changed or outcome.dropped):
            touched[place] += 1
    return f"survived, by template: {dict(leaks.most_common())}\nclean but touched: {dict(touched.most_common())}"


def _share_without_kind(outcomes: Sequence[Outcome], kind: str) -> float | None:
    """Returns the share of texts in which no value of the kind survives."""
    gone = [all(value.kind != kind for value in outcome.survivors) for outcome in outcomes]
    return sum(gone) / len(gone) if gone else None


def _minimum_row(name: str, figure: float | None, bound: float) -> Row:
    if figure is None:
        return Row(name, None, f"at least {bound:g}", False)
    # Rounds down, so that 0.99996 is not printed as 1.
    return Row(name, int(figure * 10_000) / 10_000, f"at least {bound:g}", figure >= bound)


def _share(figure: float | None) -> str:
    return "-" if figure is None else f"{int(figure * 10_000) / 10_000:.4g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *(["--:"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def real(options: Options) -> Iterator[Row]:
    """Yields the shares of changed and dropped records in public English prompt sets."""
    shown = []
    for name, key in REAL.items():
        path = options.data / f"{name}.jsonl" if options.data else None
        if path is None or not path.is_file():
            for what in ("changed", "dropped"):
                yield Row(f"{name}: share of records {what}", None, "a figure: --data names the directory", False)
            continue
        records = [json.loads(line)[key] for line in path.read_text("utf-8").splitlines()]
        before = [(record,) if isinstance(record, str) else tuple(record) for record in records]
        after = list(run_filter([(texts, "en") for texts in before]))
        changed = sum(new is not None and new != old for old, new in zip(before, after, strict=True))
        dropped = sum(new is None for new in after)
        yield Row(f"{name}: share of {len(before)} records changed", round(changed / len(before), 4), "told", True)
        yield Row(f"{name}: share of {len(before)} records dropped", round(dropped / len(before), 4), "told", True)
        places = sorted(random.Random(options.seed).sample(range(len(before)), min(options.show_number, len(before))))
        shown += [_shown(name, place, before[place], after[place]) for place in places]
    if options.show_file:
        options.show_file.write_text("\n".join(shown), "utf-8")


def _shown(name: str, place: int, before: tuple[str, ...], after: Written) -> str:
    """Returns one record before and after the filter, for a human reader."""
    verdict = "DROPPED" if after is None else "changed" if after != before else "as it was"
    lines = [f"######## {name}:{place}  {verdict}", *before]
    if after is not None and after != before:
        lines += ["-------- becomes", *after]
    return "\n".join(lines) + "\n"


def is_outside_repository(path: Path) -> bool:
    """Returns True if a file lies outside this repository."""
    return not path.resolve().is_relative_to(Path(__file__).resolve().parents[1])
