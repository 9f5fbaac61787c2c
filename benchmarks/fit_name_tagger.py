"""Fits src/eyas/privacy/data/tagger_weights.toml: the weights with which the tagger finds names in running text.

    python benchmarks/fit_name_tagger.py [--check DIR] [--write]

Logistic regression on our own texts: benchmarks/name_texts with marked names, the develop half of
benchmarks/privacy_texts, and the labeled set of benchmarks/pii_set.py. Without --write, it prints how many words of
names the new weights find in these texts. --check DIR also measures texts of other authors in DIR (their develop half),
which nothing is fitted to.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

import pii_set
import torch
from fit_context import to_rows
from marked_texts import NEWS, OWN_NEWS, news_sentences, research_sentences
from planted.fill import fill
from text_sets import sets_of

from eyas.privacy.cjk_words import CJK_LANGUAGES, list_cjk_names, load_cjk_words
from eyas.privacy.name_tagger import Tagger, TaggerWeights, load_weights
from eyas.privacy.word_lists import LANGUAGES, PACKAGE, UNICASED, person_names, read_entries
from eyas.privacy.words import split_words

PATH = PACKAGE / "data" / "tagger_weights.toml"
NAME_TEXTS = Path(__file__).with_name("name_texts")
FITTED = LANGUAGES
HEADER = """\
# Weights of the features with which name_tagger.py decides whether a word belongs to a person's name: a table for each
# kind of script. Each row is a weight with its features.
# Source: benchmarks/fit_name_tagger.py, from texts written for eyas.
"""
MARK = re.compile(r"\[\[|\]\]")
TIMES = 1  # names for each private and each public text
DRAWN = 1  # names from lists for each of these texts in languages without capital letters
SEED_OF_SET = 3  # of the labeled set; `make prove-data` measures another seed
# Of a text from a template, whose name is drawn; a marked text weighs 1.
WEIGHT_OF_PAIRS, WEIGHT_OF_PLANTED, WEIGHT_OF_SET = 0.15, 0.3, 0.1
MIN_WORDS = 3  # that a feature occurs in
STRENGTH = 1.0  # of the prior that pulls the weights to 0
NAMES_COST = 1.3  # a missed word of a name costs more than a wrong one
STEPS = 80
SHOWN = 10  # one of so many own texts is counted in what is printed


@dataclass(frozen=True)
class MarkedText:
    """A text, and the start and the end of each name in it."""

    language: str
    text: str
    names: tuple[tuple[int, int], ...]
    weight: float = 1.0


def read_marked(line: str, language: str) -> MarkedText:
    """Returns the text of a line such as "[[Anna]] called" with its names."""
    text, names = "", []
    for k, piece in enumerate(MARK.split(line.replace("\\n", "\n"))):
        if k % 2:
            names.append((len(text), len(text) + len(piece)))
        text += piece
    return MarkedText(language, text, tuple(names))


def own_texts(language: str) -> Iterator[MarkedText]:
    """Yields the texts of a language that the weights are fitted to."""
    for path in sorted(NAME_TEXTS.glob(f"{language}.txt")):
        for line in path.read_text("utf-8").splitlines():
            if line and not line.startswith("#"):
                yield read_marked(line, path.stem)
    for texts in sets_of((language,), "develop"):
        rng = Random(texts.language)
        for templates in (texts.private, texts.public):
            for i, template in enumerate(templates):
                names = [texts.names[(7 * i + 11 * k) % len(texts.names)] for k in range(TIMES)]
                for name in names + listed_names(texts.language, rng):
                    yield _marked(template.text.format(name=name), texts.language, [name], WEIGHT_OF_PAIRS)
        for template in texts.planted:
            filled = fill(template.group, template.text, texts, rng)
            people = [value.value for value in filled.planted if value.slot in ("person", "first", "last")]
            yield _marked(filled.text, texts.language, people, WEIGHT_OF_PLANTED)
    for labeled in (labeled for labeled in pii_set.build_set(SEED_OF_SET) if labeled.language == language):
        people = [planted.value for planted in labeled.planted if planted.kind == "PERSON"]
        yield _marked(labeled.text, labeled.language, people, WEIGHT_OF_SET)


def listed_names(language: str, rng: Random) -> list[str]:
    """Returns names of the lists, for a language without capital letters. Some hold characters that no list pairs."""
    if language in UNICASED:
        words = sorted(read_entries("first_names_that_are_words", language))
        parts = [
            tuple(rng.choice(person_names(part, language)) for part in ("first", "first", "last")) for _ in range(DRAWN)
        ]
        # A first name that is a word, too, has another name behind it.
        return [rng.choice((first, f"{first} {last}", f"{first} {second} {last}", f"{rng.choice(words)} {last}"))
                for first, second, last in parts]  # fmt: skip
    if language not in CJK_LANGUAGES:
        return []
    words, names = load_cjk_words(language), []
    before, after = sorted(words.parts["before"]), sorted(words.parts["after"])
    for _ in range(DRAWN):
        last, first = (rng.choice(list_cjk_names(role, language)) for role in ("last", "first"))
        unlisted = rng.choice(before) + rng.choice(after)
        names.append(
            rng.choice((last + first, last + first, last + unlisted, first if len(first) > 1 else last + first))
        )
    return names


def _marked(text: str, language: str, names: Sequence[str], weight: float = 1.0) -> MarkedText:
    edges = (
        ["", ""] if language in CJK_LANGUAGES else [r"(?<!\w)[وبلفك]?" if language == "ar" else r"(?<!\w)", r"(?!\w)"]
    )
    found = [match.span(1) for name in names for match in re.finditer(f"({re.escape(name)})".join(edges), text)]
    return MarkedText(language, text, tuple(found), weight)


@dataclass(frozen=True)
class Example:
    """A word: the table of its weights, its features, whether it belongs to a name, and its weight."""

    family: str
    features: tuple[str, ...]
    is_name: bool
    weight: float


def examples(marked: MarkedText) -> Iterator[Example]:
    """Yields the words of a text on which the tagger decides. The decision on the word before is the right one."""
    tagger, lead, follows = Tagger(split_words(marked.text), marked.language), frozenset[str](), False
    words = tagger.words
    bounds = list(zip(words.starts, words.ends, strict=True))
    right = [any(start <= a < end or start < b <= end for start, end in marked.names) for a, b in bounds]
    for i, is_name in enumerate(right):
        follows = i > 0 and right[i - 1] and tagger.may_follow(i)
        if tagger.may_be_name(i, follows):
            groups = tagger.features(i, follows, lead if follows else ())
            yield Example(tagger.family(i), tuple(chain(*groups)), is_name, marked.weight)
        if is_name and not follows:
            lead = frozenset(tagger.tables_before(i))


def all_examples(language: str) -> list[Example]:
    """Returns the words of all texts of a language."""
    return [example for marked in own_texts(language) for example in examples(marked)]


def fit(made: Sequence[Example]) -> dict[str, float]:
    """Returns the weights that maximize the likelihood of the examples and the prior."""
    counts = Counter(feature for example in made for feature in example.features)
    known = {feature: k for k, feature in enumerate(sorted(counts)) if counts[feature] >= MIN_WORDS}
    index = {feature: k for k, feature in enumerate(known)}
    rows = [[index[feature] for feature in example.features if feature in index] for example in made]
    flat = torch.tensor([k for row in rows for k in row])
    starts = torch.tensor([0, *(len(row) for row in rows)][:-1]).cumsum(0)
    names = torch.tensor([float(example.is_name) for example in made])
    cost = torch.tensor([example.weight for example in made])
    weights = torch.zeros(len(index), 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        sums = torch.nn.functional.embedding_bag(flat, weights, starts, mode="sum")[:, 0]
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            sums, names, reduction="none", pos_weight=torch.tensor(NAMES_COST)
        )
        total = (cost * each).sum() + STRENGTH / 2 * (weights**2).sum()
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return {feature: round(weights[k].item(), 1) for feature, k in index.items()}


def describe_names(texts: Sequence[MarkedText], weights: Mapping[str, TaggerWeights]) -> str:
    """Returns the recall and the precision of these weights, counted in names."""
    total = found = hits = right = 0
    for marked in texts:
        spans = list(Tagger(split_words(marked.text), marked.language).run(weights))
        total, found = total + len(marked.names), found + len(spans)
        hits += sum(any(span.start < end and span.end > start for span in spans) for start, end in marked.names)
        right += sum(any(span.start < end and span.end > start for start, end in marked.names) for span in spans)
    shares = hits / max(1, total), right / max(1, found)
    return f"recall {shares[0]:.3f} ({hits} of {total} names), precision {shares[1]:.3f} ({right} of {found} spans)"


def check_texts(data: Path) -> Iterator[tuple[str, list[MarkedText]]]:
    """Yields the texts of other authors in the half for developing, by their files."""
    files = {name: news_sentences(data, "develop", name) for name in (*NEWS, *OWN_NEWS)}
    for name, found in {"presidio-research": research_sentences(data, "develop"), **files}.items():
        yield (
            name,
            [
                MarkedText(one.language, one.text, tuple((m.start, m.end) for m in one.marks if m.kind == "PERSON"))
                for one in found
                if one.language in FITTED
            ],
        )


def main() -> int:
    """Fits the weights, prints what they find, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, metavar="DIR", help="directory of texts with marked names")
    parser.add_argument("--write", action="store_true", help="write the weights to tagger_weights.toml")
    parsed = parser.parse_args()
    torch.manual_seed(0)
    families: dict[str, list[Example]] = defaultdict(list)
    with ProcessPoolExecutor() as pool:
        for example in chain.from_iterable(pool.map(all_examples, FITTED)):
            families[example.family].append(example)
    fitted = {family: fit(families[family]) for family in sorted(families)}
    print(f"{sum(map(len, families.values()))} words, {sum(map(len, fitted.values()))} weights", flush=True)
    texts = [marked for language in FITTED for k, marked in enumerate(own_texts(language)) if k % SHOWN == 0]
    new = {family: TaggerWeights(weights) for family, weights in fitted.items()}
    for label, used in (("today", load_weights()), ("fitted", new)):
        print(f"own texts, {label}: {describe_names(texts, used)}")
        for name, others in check_texts(parsed.check) if parsed.check else ():
            print(f"{name}, {label}: {describe_names(others, used)}", flush=True)
    if parsed.write:
        tables = (f"\n[{family}]\n{to_rows(weights)}" for family, weights in fitted.items())
        PATH.write_text(HEADER + "".join(tables), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
