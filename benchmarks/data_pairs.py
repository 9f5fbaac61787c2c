"""Part `pairs` of `make prove-data`: measures minimal pairs, the same name in a private and in a public text.

A pair is right if the name is gone from the private text and the public text is unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from changes import ChangeLog, Written
from data_detection import run_filter
from data_options import Options
from planted.survival import name_survives
from result_rows import Row
from shares import share_row
from text_sets import FIRST_LANGUAGES, NEW_LANGUAGES, NumberedText, TextSet, sets_of

PAIRS = 200  # of each language
MIN_RIGHT = 0.95
SLOT = "{name}"


@dataclass(frozen=True)
class Pair:
    """A name with a private and a public text that hold it."""

    language: str
    name: str
    private: NumberedText
    public: NumberedText

    def fill(self, template: NumberedText) -> str:
        """Returns a text of this pair."""
        return template.text.format(name=self.name)


@dataclass(frozen=True)
class Verdict:
    """The result of a pair: each side, and both."""

    language: str
    is_gone: bool
    is_unchanged: bool

    @property
    def is_right(self) -> bool:
        """True if both sides are right."""
        return self.is_gone and self.is_unchanged


def make_pairs(texts: TextSet) -> list[Pair]:
    """Makes the pairs of a language. Each name comes equally often, each time with other texts."""
    names, private, public = texts.names, texts.private, texts.public
    rounds = -(-PAIRS // len(names))
    # In each round a name moves on by as many texts as keep its texts different and all texts equally frequent.
    steps = [max(1, len(some) // rounds) for some in (private, public)]
    made = []
    for number in range(PAIRS):
        turn, place = divmod(number, len(names))
        one, other = ((place + turn * step) for step in steps)
        made.append(Pair(texts.language, names[place], private[one % len(private)], public[other % len(public)]))
    return made


def judge(pair: Pair, private: Written, public: Written) -> Verdict:
    """Judges a pair by what the filter made of its two texts. A dropped private text is right."""
    fixed = pair.private.text.replace(SLOT, " ")
    is_gone = private is None or not name_survives(pair.name, private[0], fixed)
    return Verdict(pair.language, is_gone, public == (pair.fill(pair.public),))


def pairs(options: Options) -> Iterator[Row]:
    """Yields the shares of right pairs: both sides, and each side alone."""
    log = ChangeLog(options.show_file, options.half == "develop")
    made = [pair for texts in sets_of(options.languages, options.half) for pair in make_pairs(texts)]
    for names in ("private", "all"):
        private = run_filter([((pair.fill(pair.private),), pair.language) for pair in made], names)
        public = run_filter([((pair.fill(pair.public),), pair.language) for pair in made], names)
        verdicts = list[Verdict]()
        for pair, one, other in zip(made, private, public, strict=True):
            verdicts.append(judge(pair, one, other))
            if names == "private" and not verdicts[-1].is_gone:
                log.add(pair.private.group, [pair.fill(pair.private)], one, "THE NAME SURVIVES")
            if names == "private" and not verdicts[-1].is_unchanged:
                log.add(pair.public.group, [pair.fill(pair.public)], other, "A PUBLIC NAME IS CHANGED")
        yield from pair_rows(verdicts, f"pairs, names={names}", MIN_RIGHT if names == "private" else None)


def pair_rows(verdicts: list[Verdict], mode: str, minimum: float | None) -> Iterator[Row]:
    """Yields the rows of one mode, of each language and of both groups of languages."""
    groups = [(language, (language,)) for language in FIRST_LANGUAGES + NEW_LANGUAGES]
    groups += [("the nine languages", FIRST_LANGUAGES), ("the six new languages", NEW_LANGUAGES)]
    for name, languages in groups:
        some = [verdict for verdict in verdicts if verdict.language in languages]
        if some:
            both = sum(verdict.is_right for verdict in some)
            yield share_row(f"{mode}: both sides right in {name}", both, len(some), minimum)
            gone = sum(verdict.is_gone for verdict in some)
            yield share_row(f"{mode}: private name gone in {name}", gone, len(some))
            unchanged = sum(verdict.is_unchanged for verdict in some)
            yield share_row(f"{mode}: public text unchanged in {name}", unchanged, len(some))
