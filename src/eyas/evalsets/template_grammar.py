"""A small generative grammar for the prompts of `eyas.evalsets`: templates with weighted choices, and words for them.

    {a|b|c}   one of the options; the tone decides their order, and the first ones are the likely ones (braces may nest)
    <word>    a word of the text: a string is used as it is, from a tuple one is drawn

Choices are skewed (Zipf), so a text is neither certain nor uniform: a model trained on it stays uncertain at every
brace. The tone, which decides the likely option, is named only once, far away from most braces.
"""

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.base.config import load_toml

_BRACES = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"<(\w+)>")
_ZIPF_EXPONENT = 1.5
_REUSE_PROBABILITY = 0.45  # that a drawn word is one this text has used before: texts stay with their subject

Messages = list[dict[str, str]]
Words = Mapping[str, str | Sequence[str]]

WORDS: dict[str, Any] = load_toml(Path(__file__).with_name("words.toml"))
"""The tables of words.toml."""
NAMES, WEEKDAYS, MONTHS, TONES = (tuple(WORDS[key].split()) for key in ("names", "weekdays", "months", "tones"))
TOWNS = tuple(start + end for start in WORDS["town_starts"].split() for end in WORDS["town_ends"].split())
TOPICS: list[dict[str, str | tuple[str, ...]]] = [
    {"topic": name} | {key: tuple(text.split(", " if key == "place" else " ")) for key, text in table.items()}
    for name, table in WORDS["topics"].items()
]
"""The words of each topic: thing, verb, quality, place, person, and its name as "topic"."""


def draw_words(rng: random.Random, **choices: Sequence[object]) -> dict[str, str]:
    """Returns one of the choices for each word, drawn in their order."""
    return {word: str(rng.choice(options)) for word, options in choices.items()}


def draw_topic(rng: random.Random, topic: Words) -> Words:
    """Returns the words of a topic, with one thing and one place drawn from its lists."""
    return {**topic, **draw_words(rng, thing=topic["thing"], place=topic["place"])}


def zipf_choice(rng: random.Random, options: Sequence[str], exponent: float = _ZIPF_EXPONENT) -> str:
    """Returns one option with weight 1 / rank^exponent: the first ones come more often."""
    return rng.choices(options, [1.0 / (rank + 1) ** exponent for rank in range(len(options))])[0]


class TemplateGrammar:
    """A writer of one text: it expands templates in one tone with one set of words and reuses words it has drawn."""

    def __init__(self, rng: random.Random, tone: str, words: Words) -> None:
        """Sets the tone, the words by name, and the random generator that makes every choice."""
        self.rng = rng
        self.tone = tone
        self.words = dict(words)
        self._used_words: dict[str, list[str]] = {}

    def expand(self, template: str) -> str:
        """Returns the template with every choice made and every word filled in."""
        while _BRACES.search(template):
            template = _BRACES.sub(
                lambda match: zipf_choice(self.rng, self._rank_by_tone(match.group(1).split("|"))), template
            )
        return _WORD.sub(lambda match: self._fill_word(match.group(1)), template)

    def expand_some(self, templates: Sequence[str], count: int) -> list[str]:
        """Returns `count` different templates, expanded; the tone decides which ones are likely."""
        pool = self._rank_by_tone(templates)
        expanded: list[str] = []
        for _ in range(min(count, len(pool))):
            template = zipf_choice(self.rng, pool, 1.0)
            pool.remove(template)
            expanded.append(self.expand(template))
        return expanded

    def ask_and_answer(self, questions: Sequence[str], answer: str) -> Messages:
        """Returns a conversation of one question, drawn from templates, and this answer."""
        question = self.expand(self.rng.choice(questions))
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def _rank_by_tone(self, options: Sequence[str]) -> list[str]:
        return sorted(options, key=lambda option: zlib.crc32(f"{self.tone}/{options[0]}/{option}".encode()))

    def _fill_word(self, name: str) -> str:
        value = self.words[name]
        if isinstance(value, str):
            return value
        used = self._used_words.setdefault(name, [])
        if used and self.rng.random() < _REUSE_PROBABILITY:
            return self.rng.choice(used)
        word = zipf_choice(self.rng, value, 0.8)
        used.append(word)
        return word
