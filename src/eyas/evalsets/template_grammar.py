"""A tiny generative grammar: templates with weighted choices whose order depends on the tone.

    {a|b|c}   one of the options; likely ones first, in an order that the tone decides (nested braces allowed)
    <word>    a word of the context: a string stands for itself, a tuple is drawn from

Choices are skewed (Zipf), so text written with it is neither certain nor uniform: a model that has learnt it is torn
at every brace. Which option is the likely one depends on the tone, which is named once, far away from most braces.
"""

import random
import re
import zlib
from collections.abc import Mapping, Sequence

_BRACES = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"<(\w+)>")
_ZIPF = 1.5
_REUSE = 0.45  # chance that a drawn word is one this text has used before: texts stay with their subject

Words = Mapping[str, str | Sequence[str]]


def zipf_choice(rng: random.Random, options: Sequence[str], exponent: float = _ZIPF) -> str:
    """One option, the first ones more often: weight 1 / rank^exponent."""
    return rng.choices(options, [1.0 / (rank + 1) ** exponent for rank in range(len(options))])[0]


class TemplateGrammar:
    """Expands templates in one tone about one set of words; remembers the words it drew."""

    def __init__(self, rng: random.Random, tone: str, words: Words) -> None:
        self.rng = rng
        self.tone = tone
        self.words = dict(words)
        self._used_words: dict[str, list[str]] = {}

    def expand(self, template: str) -> str:
        """The template with every choice made and every word filled in; first letter as written."""
        previous = None
        while previous != template:
            previous = template
            template = _BRACES.sub(lambda match: self._choose_option(match.group(1)), template)
        return _WORD.sub(lambda match: self._fill_word(match.group(1)), template)

    def expand_some(self, templates: Sequence[str], count: int) -> list[str]:
        """`count` different templates, expanded; which come early depends on the tone."""
        pool = self._rank_by_tone(templates)
        chosen: list[str] = []
        for _ in range(min(count, len(pool))):
            template = zipf_choice(self.rng, pool, 1.0)
            pool.remove(template)
            chosen.append(self.expand(template))
        return chosen

    def _rank_by_tone(self, options: Sequence[str]) -> list[str]:
        return sorted(options, key=lambda option: zlib.crc32(f"{self.tone}/{options[0]}/{option}".encode()))

    def _choose_option(self, body: str) -> str:
        return zipf_choice(self.rng, self._rank_by_tone(body.split("|")))

    def _fill_word(self, key: str) -> str:
        value = self.words[key]
        if isinstance(value, str):
            return value
        used = self._used_words.setdefault(key, [])
        if used and self.rng.random() < _REUSE:
            return self.rng.choice(used)
        word = zipf_choice(self.rng, value, 0.8)
        used.append(word)
        return word
