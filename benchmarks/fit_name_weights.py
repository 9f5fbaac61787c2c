"""Fits src/eyas/privacy/data/name_weights.toml: the weights that decide whether a name belongs to a private person.

    python benchmarks/fit_name_weights.py [--languages en,de] [--data DIR] [--errors FILE] [--write]

Logistic regression on the names that the detectors find in the develop half of benchmarks/privacy_texts: names of
private and planted texts are private; names of public texts and ordinary prompts are not. Neither are those of GSM8K's
training problems, if `--data` has them. A prior keeps the weights of rare features near a judgment. The texts were at
hand when the word tables were written, and other texts hold fewer of their words: so each example is used twice, and
each time some of its words are left out. Without --write, it only prints the weights and the share of right decisions.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from planted.fill import fill
from prove_data import DATA
from public_prompts import read_records
from text_sets import TextSet, sets_of

from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter
from eyas.privacy.private_names import COUNTED, PUBLIC, describe_names, score_features
from eyas.privacy.word_lists import LANGUAGES, PACKAGE, read_data_file

PATH = PACKAGE / "data" / "name_weights.toml"
HEADER = """\
# Weights of the features with which private_names.py decides whether a name belongs to a private person.
# Source: benchmarks/fit_name_weights.py, from the develop half of benchmarks/privacy_texts and from GSM8K (MIT).

[weights]
"""
# Weights before any text is seen. The others begin at 0.
PRIOR = {
    "beside_private": 2.0, "doubt": -2.0, "data_far": 2.5, "data_near": 4.0, "full_name": 1.5, "own_relation": 3.0,
    "public_people": -1.5, "rule_": 0.5, "rule_closing": 2.5, "rule_field": 1.5, "rule_greeting": 2.5,
    "rule_introduction": 2.5, "rule_label": 1.0, "rule_letter": 2.5, "rule_title": 0.5, "school_problem": -2.5,
    "term": -2.5,
}  # fmt: skip
STRENGTH = 4.0  # of the prior
NAMES_PER_TEXT = 4
PUBLIC_COSTS = 1.7  # a public name that is changed costs more than a private one that stays
SCHOOL_WEIGHT = 0.8  # of a name
MAX_SCHOOL = 800  # problems
PLACES = ("near", "far")
# Features of which some words are left out.
THINNED = {f"{table}_{place}" for table in COUNTED if table != "first_person" for place in PLACES}
THINNED |= {"private_relations_before", "own_relation", "private_contacts_before"}
LEFT_OUT = 0.25  # share of these words
STEPS = 60


@dataclass(frozen=True)
class Example:
    """A detected name, its features, and whether it is private."""

    language: str
    name: str
    text: str
    is_private: bool
    weight: float
    features: dict[str, float]


class Collector:
    """The detectors, and the features of the names that they find in texts."""

    def __init__(self) -> None:
        config = PrivacyConfig(names="all", unsupported_language="keep")
        self._filter = PrivacyFilter(config, b"a key of the benchmark")
        self.examples: list[Example] = []
        self.missed: list[tuple[str, str, str]] = []  # language, private name that no rule detects, text

    def add(self, text: str, language: str, private: Sequence[str] | None, weight: float = 1.0) -> None:
        """Adds the names of one text. `private`: the private names in it; None if no name in it is private."""
        spans = self._filter.detect([((text,), language)])[0]
        missed = set(private or ())
        for found in describe_names((text,), spans, language):
            name = text[found.span.start : found.span.end]
            meant = {one for one in private or () if _is_part(name, one)}
            missed -= meant
            if meant or private is None:
                features = {feature: value for feature, value in found.features.items() if value}
                self.examples.append(Example(language, name, text, bool(meant), weight, features))
        self.missed += [(language, name, text) for name in sorted(missed)]


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
                    name = names[(7 * i + 11 * k) % len(names)]
                    text = template.text.format(name=name)
                    collector.add(text, language, [name] if is_private else None, 1 if is_private else PUBLIC_COSTS)
        for prompt in texts.ordinary:
            collector.add(prompt.text, language, None, PUBLIC_COSTS)
        rng = Random(language)
        for template in texts.planted:
            filled = fill(template.group, template.text, texts, rng)
            people = [value.value for value in filled.planted if value.slot in ("person", "first", "last")]
            if people:
                collector.add(filled.text, language, people)
    for record in read_records(data, "gsm8k-train")[:MAX_SCHOOL] if data else ():
        collector.add(record["question"], "en", None, SCHOOL_WEIGHT)
    return collector


def thin(example: Example, rng: Random) -> Example:
    """Returns half an example, without some of its words of the word tables."""
    features = dict(example.features)
    for feature in THINNED & features.keys():
        features[feature] = float(sum(rng.random() >= LEFT_OUT for _ in range(round(features[feature]))))
    features["nothing_public"] = float(
        not any(features.get(f"{table}_{place}") for table in PUBLIC for place in PLACES)
    )
    return replace(
        example, weight=example.weight / 2, features={name: value for name, value in features.items() if value}
    )


def fit(examples: Sequence[Example]) -> dict[str, float]:
    """Returns the weights that maximize the likelihood of the examples and the prior, by Newton's method."""
    features = sorted({feature for example in examples for feature in example.features})
    prior = np.array([PRIOR.get(feature, 0.0) for feature in features] + [0.0])
    rows = np.array([[example.features.get(feature, 0.0) for feature in features] + [1.0] for example in examples])
    private = np.array([example.is_private for example in examples], float)
    cost = np.array([example.weight for example in examples])
    pull = np.array([STRENGTH] * len(features) + [1e-6])  # the bias has no prior
    weights = prior.copy()
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (cost * (chance - private)) + pull * (weights - prior)
        bend = (rows * (cost * chance * (1 - chance))[:, None]).T @ rows + np.diag(pull)
        step = np.linalg.solve(bend, slope)
        weights -= step / max(1.0, np.abs(step).max())  # a longer step could leave the range where it converges
    return PRIOR | dict(zip([*features, "bias"], weights.tolist(), strict=True))


def main() -> int:
    """Fits the weights, prints them beside those of the file, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--data", type=Path, default=DATA if DATA.is_dir() else None)
    parser.add_argument("--errors", type=Path, help="a file for the wrong decisions with the weights of today's file")
    parser.add_argument("--write", action="store_true", help="write the weights to name_weights.toml")
    parsed = parser.parse_args()
    collector = collect(sets_of(tuple(parsed.languages.split(",")), "develop"), parsed.data)
    rng = Random(PATH.name)
    weights = fit([thin(example, rng) for example in collector.examples for _ in range(2)])
    today = read_data_file("data/name_weights")["weights"]
    lines = []
    for language in parsed.languages.split(","):
        chosen = [example for example in collector.examples if example.language == language]
        missed = [item for item in collector.missed if item[0] == language]
        for label, used in (("today", today), ("fitted", weights)):
            wrong = [one for one in chosen if (score_features(one.features, used) >= 0.5) != one.is_private]
            private = sum(one.is_private for one in chosen)
            lost = sum(one.is_private for one in wrong)
            print(
                f"{language} {label}: recall of private names: {private - lost} of {private}, {len(missed)} missed;"
                f" public names that stay: {len(chosen) - private - len(wrong) + lost} of {len(chosen) - private}"
            )
            if label == "today":
                lines += [f"{one.is_private:d} [{one.name}] {language} {one.text!r}" for one in wrong]
                lines += [f"not detected [{name}] {language} {text!r}" for _, name, text in missed]
    for feature in sorted(weights, key=lambda feature: -weights[feature]):
        print(f"{feature:28}{weights[feature]:7.2f}  today {today.get(feature, 0.0):6.2f}")
    if parsed.errors:
        parsed.errors.write_text("\n".join(lines) + "\n", "utf-8")
    if parsed.write:
        PATH.write_text(HEADER + "".join(f"{name} = {weights[name]:.2f}\n" for name in sorted(weights)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
