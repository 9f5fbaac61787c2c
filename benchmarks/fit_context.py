"""Fits the weights of the words around names and values: src/eyas/privacy/languages/*/weights.

    python benchmarks/fit_context.py [--languages en,de] [--only names] [--data DIR] [--folds N] [--write]

Logistic regression on the develop half of benchmarks/privacy_texts, and on GSM8K's training problems, if `--data` has
them. Names of private and planted texts are private; names of public texts and ordinary prompts are not. Planted
numbers and codes are private; all others are not. First all languages are fitted together, without their words; the
weights of each language are drawn to those. With --folds, it prints the share of right decisions on texts that were
left out; without --write, nothing else.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from random import Random

import torch
from context_features import list_features
from planted.fill import fill
from prove_data import DATA
from public_prompts import read_records
from text_sets import TextSet, sets_of

from eyas.privacy.config import PrivacyConfig
from eyas.privacy.context_model import ContextWords
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.private_names import describe_names
from eyas.privacy.private_values import find_candidates, shape_features
from eyas.privacy.word_lists import LANGUAGES, PACKAGE

HEADER = """\
# Weights of the features of the text around {what}. Each row is a weight with its features.
# Source: benchmarks/fit_context.py, from texts written for eyas and from GSM8K (MIT).
"""
WHAT = {"names": "names, for private_names.py", "values": "numbers and codes, for private_values.py"}
# Weights of names before any text is seen. The others begin at 0.
PRIOR = {
    "beside_private": 2.0, "doubt": -2.0, "data_far": 2.5, "data_near": 4.0, "full_name": 1.5, "own_relation": 3.0,
    "public_people": -1.5, "rule_": 0.5, "rule_closing": 2.5, "rule_field": 1.5, "rule_greeting": 2.5,
    "rule_introduction": 2.5, "rule_label": 1.0, "rule_letter": 2.5, "rule_title": 0.5, "school_problem": -2.5,
    "term": -2.5,
}  # fmt: skip
PRIOR_STRENGTH = 4.0  # of all languages together
STRENGTH = {"features": 1.0, "words": 0.8}  # of one language
NAMES_PER_TEXT, FILLINGS = 2, 3
PUBLIC_COSTS = 1.2  # a public name or number that is changed costs more than a private one that stays
SCHOOL_WEIGHT = 0.6
MOVED_WEIGHT = 0.5  # of a private value in the place of a public name
MAX_SCHOOL = 2000  # problems
MIN_TEXTS = 2  # texts that hold a feature
MIN_WEIGHT = 0.1
STEPS = 100
# Slots of `planted` whose values private_values.py looks for, and the kinds that drop a record by default.
DROPPED = [
    "card",
    "iban",
    "account",
    "government_id",
    "passport",
    "driving_license",
    "password",
    "api_key",
    "pin",
    "cookie",
]
REPLACED = [
    "phone",
    "birth_date",
    "plate",
    "vin",
    "imei",
    "mac",
    "gps",
    "ip",
    "customer_id",
    "member_id",
    "insurance_id",
    "handle",
]


@dataclass(frozen=True)
class Example:
    """A name or a value: its text, whether it is private, and its features.

    Attributes:
        group: The name of its template, which is in one fold.
        label: True if it is private; for the table `dropped`, if it drops the record.
        features: Features with their values, without words.
        words: Features of the words around it.
    """

    language: str
    group: str
    shown: str
    label: bool
    weight: float
    features: Mapping[str, float]
    words: Mapping[str, float]


class Collector:
    """The detectors, and the examples of the names and the values in texts."""

    def __init__(self) -> None:
        config = PrivacyConfig(names="all", unsupported_language="keep")
        self._filter = PrivacyFilter(config, b"a key of the benchmark")
        self.names: list[Example] = []
        self.values: list[Example] = []
        self.dropped: list[Example] = []

    def add(self, text: str, language: str, group: str, private: Mapping[str, str], weight: float = 1.0) -> None:
        """Adds the examples of one text.

        Args:
            text: The text.
            language: Its language.
            group: The name of its template.
            private: Each private value in it -> its slot.
            weight: The weight of what is not private.
        """
        spans = self._filter.detect([((text,), language)])[0]
        people = [(span.start, span.end) for span in spans[0] if span.kind == "PERSON"]
        context = ContextWords(text, people, language)
        names = [value for value, slot in private.items() if slot in ("person", "first", "last", "name")]
        for found in describe_names((text,), spans, language):
            name = text[found.span.start : found.span.end]
            is_private = any(_is_part(name, one) for one in names)
            if is_private or not private:  # another name of a private text may be private or not
                features = {feature: value for feature, value in found.features.items() if feature != "context"}
                words = _count(list_features(context, found.span.start, found.span.end))
                cost = 1.0 if is_private else weight
                self.names.append(Example(language, group, f"[{name}] {text}", is_private, cost, features, words))
        self._add_values(text, language, group, private, context, weight)

    def _add_values(self, text: str, language: str, group: str, private: Mapping[str, str], context: ContextWords,
                    weight: float) -> None:  # fmt: skip
        spots = [
            (*match.span(), slot) for value, slot in private.items() for match in re.finditer(re.escape(value), text)
        ]
        for value in find_candidates(text):
            slots = [(a, b, slot) for a, b, slot in spots if a < value.end and b > value.start]
            is_whole = all(value.start <= a + 2 and value.end >= b - 2 for a, b, _ in slots)
            is_street = value.form == "street" and all(slot == "street" for _, _, slot in slots)
            if slots and not is_street and not (is_whole and slots[0][2] in (*DROPPED, *REPLACED)):
                continue  # a part of an address, a name with a number
            written = text[value.start : value.end]
            shape = _count(shape_features(written, value.form))
            words = _count(list_features(context, value.start, value.end))
            shown, cost = f"[{written}] {text}", 1.0 if slots else weight
            self.values.append(Example(language, group, shown, bool(slots), cost, shape, words))
            if slots and value.form not in ("date", "handle", "street"):
                self.dropped.append(Example(language, group, shown, slots[0][2] in DROPPED, 1.0, shape, words))


def _count(features: Iterable[str]) -> dict[str, float]:
    return {feature: float(count) for feature, count in Counter(features).items()}


def _is_part(found: str, name: str) -> bool:
    found, name = found.casefold(), name.casefold()
    return found in name or any(part in found for part in name.split())


def collect(sets: Sequence[TextSet], data: Path | None) -> Collector:
    """Returns the examples of these sets, and of the school problems in `data`."""
    collector = Collector()
    for texts in sets:
        language, names = texts.language, texts.names
        for templates, is_private in ((texts.private, True), (texts.public, False)):
            for i, template in enumerate(templates):
                for k in range(NAMES_PER_TEXT):
                    name = names[(7 * i + 11 * k + i // 5) % len(names)]
                    text = template.text.format(name=name)
                    collector.add(text, language, template.group, {name: "name"} if is_private else {}, PUBLIC_COSTS)
        for prompt in texts.ordinary:
            collector.add(prompt.text, language, prompt.group, {}, NAMES_PER_TEXT * PUBLIC_COSTS)
        for template in texts.planted:
            for number in range(FILLINGS):
                filled = fill(template.group, template.text, texts, Random(f"{template.group} {number}"))
                planted = {value.value: value.slot for value in filled.planted}
                collector.add(filled.text, language, template.group, planted)
    school = data if any(texts.language == "en" for texts in sets) else None
    for number, record in enumerate(read_records(school, "gsm8k-train")[:MAX_SCHOOL] if school else ()):
        collector.add(record["question"], "en", f"gsm8k {number}", {}, SCHOOL_WEIGHT)
    collector.values += list(move_values(collector))
    return collector


def move_values(collector: Collector) -> Iterator[Example]:
    """Yields each private value again, among the words around a public name: there it is not private."""
    rng, places = Random(WHAT["values"]), defaultdict[str, list[Example]](list)
    for name in collector.names:
        if not name.label:
            places[name.language].append(name)
    for value in collector.values:
        if value.label and "form:odd" not in value.features:  # what looks like a password is one nearly everywhere
            place = rng.choice(places[value.language])
            shown = f"{value.shown} moved to {place.shown}"
            yield Example(value.language, place.group, shown, False, MOVED_WEIGHT, value.features, place.words)


def fit(
    examples: Sequence[Example], prior: Mapping[str, float], strength: float, of_words: float | None
) -> dict[str, float]:
    """Returns the weights that maximize the likelihood of the examples and the prior.

    Args:
        examples: The examples.
        prior: The weights to which a normal distribution draws; 0 for the others.
        strength: The inverse of its variance.
        of_words: The same for features of words; None: they are not used.
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for example in examples if of_words is not None else ():
        for word in example.words:
            groups[word].add(example.group)
    index = {"bias": 0} | {name: k for k, name in enumerate(sorted({f for one in examples for f in one.features}), 1)}
    index |= {
        word: k for k, word in enumerate(sorted(w for w, at in groups.items() if len(at) >= MIN_TEXTS), len(index))
    }
    rows = [[(0, 1.0), *((index[name], value) for name, value in (*one.features.items(), *one.words.items())
                         if name in index)] for one in examples]  # fmt: skip
    flat = torch.tensor([k for row in rows for k, _ in row])
    values = torch.tensor([value for row in rows for _, value in row])
    starts = torch.tensor([0, *(len(row) for row in rows)][:-1]).cumsum(0)
    labels = torch.tensor([float(one.label) for one in examples])
    cost = torch.tensor([one.weight for one in examples])
    mean = torch.tensor([[prior.get(name, 0.0)] for name in index])
    pull = torch.tensor(
        [[1e-3 if name == "bias" else (of_words or 0.0) if name in groups else strength] for name in index]
    )
    weights = mean.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        sums = torch.nn.functional.embedding_bag(flat, weights, starts, mode="sum", per_sample_weights=values)[:, 0]
        each = torch.nn.functional.binary_cross_entropy_with_logits(sums, labels, reduction="none")
        total = (cost * each).sum() / FILLINGS + (pull * (weights - mean) ** 2).sum() / 2
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return {name: weights[k].item() for name, k in index.items()}


def fit_language(examples: Sequence[Example], prior: Mapping[str, float]) -> dict[str, float]:
    """Returns the weights of one language."""
    return fit(examples, prior, STRENGTH["features"], STRENGTH["words"])


def score(example: Example, weights: Mapping[str, float]) -> float:
    """Returns the logarithm of the odds that an example is private."""
    both = (*example.features.items(), *example.words.items())
    return weights["bias"] + sum(weights.get(name, 0.0) * value for name, value in both)


def check(examples: Sequence[Example], prior: Mapping[str, float], folds: int, errors: list[str]) -> str:
    """Returns the shares of right decisions on texts that were left out of the fit, fold by fold."""
    groups = sorted({one.group for one in examples})
    Random(0).shuffle(groups)
    fold = {group: k % folds for k, group in enumerate(groups)}
    right, total = Counter[bool](), Counter[bool]()
    for k in range(folds):
        weights = fit_language([one for one in examples if fold[one.group] != k], prior)
        for one in examples:
            if fold[one.group] == k:
                is_right = (score(one, weights) > 0) == one.label
                total[one.label] += 1
                right[one.label] += is_right
                errors += [] if is_right else [f"{one.language} {one.label:d} {score(one, weights):.1f} {one.shown!r}"]
    return ", ".join(
        f"{name} {right[label]} of {total[label]} ({right[label] / max(1, total[label]):.3f})"
        for name, label in (("private", True), ("others", False))
    )


def write_table(use: str, table: str, weights: Mapping[str, float], pooled: Set[str]) -> str:
    """Returns one table of a file of weights. Names have two: of the features of the fit of all languages, of words."""
    if use == "values":
        return f"\n[{table}]\n{to_rows(weights)}"
    features = {name: weight for name, weight in weights.items() if name in pooled} | {"context": 1.0}
    words = {name: weight for name, weight in weights.items() if name not in features}
    return f"\n[features]\n{to_rows(features)}\n[words]\n{to_rows(words)}"


def to_rows(weights: Mapping[str, float]) -> str:
    """Returns rows of a TOML table: a weight with the features that have it."""
    rows: dict[str, list[str]] = defaultdict(list)
    for name, weight in weights.items():
        if abs(weight) >= MIN_WEIGHT or name == "bias":
            rows[f"{weight:.2f}" if name == "bias" else f"{weight:.1f}"].append(name)
    return "".join(f'"{weight}" = {_quote(rows[weight])}\n' for weight in sorted(rows, key=float))


def _quote(features: Sequence[str]) -> str:
    lines, line = [], ""
    for feature in sorted(features):
        if len(line) + len(feature) > 120:
            lines, line = [*lines, line], ""
        line = f"{line} {feature}".lstrip()
    return "'''\n" + "\n".join([*lines, line]) + "\n'''"


def main() -> int:
    """Fits the weights of each language, checks them on texts that were left out, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--only", choices=WHAT)
    parser.add_argument("--data", type=Path, default=DATA if DATA.is_dir() else None)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--errors", type=Path, help="a file for the wrong decisions of the folds")
    parser.add_argument("--write", action="store_true", help="write the weights to the folders of the languages")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    languages, errors = tuple(parsed.languages.split(",")), list[str]()
    with ProcessPoolExecutor() as pool:
        collectors = list(pool.map(collect, ([texts] for texts in sets_of(languages, "develop")), repeat(parsed.data)))
    names, values, dropped = (
        [one for collector in collectors for one in getattr(collector, table)]
        for table in ("names", "values", "dropped")
    )
    tables = {"names": {"": names}, "values": {"private": values, "dropped": dropped}}
    for use in tables if parsed.only is None else [parsed.only]:
        texts: dict[str, str] = defaultdict(str)
        for table, examples in tables[use].items():
            known = PRIOR if use == "names" else {}
            pooled = {**known, **fit(examples, known, PRIOR_STRENGTH, None)}
            texts["any"] += write_table(use, table, pooled, set(pooled))
            for language in languages:
                chosen = [one for one in examples if one.language == language]
                if parsed.folds:
                    print(language, use, table, check(chosen, pooled, parsed.folds, errors), flush=True)
                texts[language] += write_table(use, table, {**pooled, **fit_language(chosen, pooled)}, set(pooled))
        for language, text in texts.items() if parsed.write else ():
            path = PACKAGE / "languages" / language / "weights" / f"private_{use}.toml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(HEADER.format(what=WHAT[use]) + text, "utf-8")
    if parsed.errors:
        parsed.errors.write_text("\n".join(errors) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
