"""Part `replaced` of `make prove-data`: lets a human judge what the filter replaced as a person.

`--judge FILE` writes a sample to FILE if it is not there: one line for each replaced span, with its text before and
after. The judge fills the last two columns with yes or no. Then the same command reads FILE and prints the shares.
The file holds texts of others and stays outside the repository.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from random import Random

from data_detection import KEY, filter_config
from data_options import Options
from judged_files import read_table, write_table
from marked_texts import NEWS, OWN_NEWS, news_sentences
from public_prompts import ordinary_prompts
from result_rows import Row
from shares import share_row
from text_sets import FIRST_LANGUAGES

SPANS = 300
MIN_RIGHT = 0.98


@dataclass(frozen=True)
class Judgment:
    """One line of the file: a replaced span, and what the judge says about it."""

    names: str  # the value of prompts.privacy.names
    source: str
    language: str
    span: str
    before: str
    after: str
    is_person: str = ""
    is_grammatical: str = ""


def replaced(options: Options) -> Iterator[Row]:
    """Yields the shares of the judged file. Writes the file first if it is not there."""
    path = options.judge_file
    if path is None:
        yield Row("replaced: spans that are a person", None, "told; not measured: --judge FILE", True)
        return
    if not path.is_file():
        sample = draw_sample(options)
        write_table(path, sample)
        yield Row(f"replaced: spans written to {path.name} for a judge", len(sample), "told", True)
        return
    yield from judged_rows(read_table(path, Judgment, ("is_person", "is_grammatical")))


def judged_rows(judged: Sequence[Judgment]) -> Iterator[Row]:
    """Yields the shares of spans that are a person, and of texts that stay grammatical, in each mode."""
    for names, bound in (("private", MIN_RIGHT), ("all", None)):
        some = [one for one in judged if one.names == names]
        persons = sum(one.is_person == "yes" for one in some)
        fitting = sum(one.is_grammatical == "yes" for one in some)
        if some or bound:
            yield share_row(f"replaced, names={names}: spans that are a person", persons, len(some), bound)
            yield share_row(f"replaced, names={names}: texts that stay grammatical", fitting, len(some), bound)


def draw_sample(options: Options) -> list[Judgment]:
    """Draws replaced spans with the seed, equally many of each language as far as there are enough.

    The default mode comes first. Where it replaces fewer spans than the sample needs, the mode "all" fills it up.
    """
    assert options.data, "--data names the directory of public texts"
    sample = list[Judgment]()
    for names in ("private", "all"):
        by_language = defaultdict[str, list[Judgment]](list)
        for one in _replaced_spans(options, options.data, names):
            by_language[one.language].append(one)
        for language, some in sorted(by_language.items()):
            Random(f"{options.seed} {language}").shuffle(some)
        rounds = zip_longest(*(some for _, some in sorted(by_language.items())))
        known = {(one.before, one.span) for one in sample}
        drawn = [one for turn in rounds for one in turn if one and (one.before, one.span) not in known]
        sample += drawn[: SPANS - len(sample)]
    return sample


def _replaced_spans(options: Options, data: Path, names: str) -> Iterator[Judgment]:
    from eyas.privacy.filter import CleanedRecord, PrivacyFilter

    privacy = PrivacyFilter(filter_config(names), key=KEY)
    for source, language, texts in _real_texts(options, data):
        record = (texts, language)
        result, found = privacy.clean([record])[0], privacy.detect([record])[0]
        if not isinstance(result, CleanedRecord):
            continue
        for text, spans, written in zip(texts, found, result.texts, strict=True):
            for span in spans:
                if span.kind == "PERSON":
                    value = text[span.start : span.end]
                    before, after = _lines_around(text, span.start, span.end, written)
                    yield Judgment(names, source, language, value, before, after)


def _real_texts(options: Options, data: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    languages = tuple(language for language in options.languages if language in FIRST_LANGUAGES)
    for file in NEWS + OWN_NEWS:
        if file.split("-")[1] in languages:
            for marked in news_sentences(data, options.half, file):
                yield file, marked.language, (marked.text,)
    for prompt in ordinary_prompts(data, options.half, languages):
        yield prompt.set_name, prompt.language, prompt.texts


def _lines_around(text: str, start: int, end: int, written: str) -> tuple[str, str]:
    """Returns the lines of a span before and after the filter, with the span in brackets. No surrogate has lines."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    number, count = text.count("\n", 0, first), text.count("\n", first, last) + 1
    before = f"{text[first:start]}[[{text[start:end]}]]{text[end:last]}"
    return before, "\n".join(written.split("\n")[number : number + count])
