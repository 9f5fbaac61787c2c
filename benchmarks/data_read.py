"""Part `read` of `make prove-data`: lets a human read fifty ordinary and fifty planted texts, before and after.

`--read FILE` writes the texts to FILE if it is not there. The reader writes yes or no into the column is_right, and
what is wrong into the column note. Then the same command reads FILE and prints the shares.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from data_detection import run_filter
from data_options import Options
from data_ordinary import collect
from data_planted import make_texts
from judged_files import read_table, write_table
from result_rows import Row
from shares import share_row
from text_sets import sets_of

TEXTS = 50


@dataclass(frozen=True)
class ReadText:
    """One line of the file: a text, what the filter made of it, and what the reader says about it."""

    use: str  # ordinary or planted
    id: str
    language: str
    before: str
    after: str
    is_right: str = ""
    note: str = ""


def read(options: Options) -> Iterator[Row]:
    """Yields the share of right texts. Writes the file first if it is not there."""
    path = options.read_file
    if path is None:
        yield Row("read: ordinary and planted texts that are right", None, "told; not measured: --read FILE", True)
        return
    if not path.is_file():
        lines = draw_texts(options)
        write_table(path, lines)
        yield Row(f"read: texts written to {path.name} for a reader", len(lines), "told", True)
        return
    lines = read_table(path, ReadText, ("is_right",))
    for use in ("ordinary", "planted"):
        some = [line for line in lines if line.use == use]
        yield share_row(f"read: {use} texts that are right", sum(line.is_right == "yes" for line in some), len(some))


def draw_texts(options: Options) -> list[ReadText]:
    """Draws texts of one half with the seed, and filters them."""
    school, others = collect(options)
    ordinary = [(f"{one.set_name} {one.id}", one.language, one.texts) for one in school + others]
    sets = sets_of(options.languages, options.half)
    planted = [(one.template, one.language, (one.text,)) for texts in sets for one in make_texts(texts, options.seed)]
    lines = list[ReadText]()
    for use, texts in (("ordinary", ordinary), ("planted", planted)):
        drawn = Random(f"{options.seed} {use}").sample(texts, min(TEXTS, len(texts)))
        written = run_filter([(before, language) for _, language, before in drawn])
        for (name, language, before), after in zip(drawn, written, strict=True):
            result = "(dropped)" if after is None else "(unchanged)" if after == before else "\n\n".join(after)
            lines.append(ReadText(use, name, language, "\n\n".join(before), result))
    return lines
