"""Family `long_context`: a register of 256, 512, ... or 128k tokens, and questions that quote from it."""

import random
from pathlib import Path

from eyas.base.config import load_toml
from eyas.evalsets import template_grammar as lexicon
from eyas.evalsets.template_grammar import Messages, TemplateGrammar, draw_words

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
FIRST_ENTRIES, NUM_SIZES = 8, 10  # about 27 tokens of the embedded target an entry


def write_register(rng: random.Random, index: int) -> Messages:
    """Returns two questions about one register. The next index has twice as many entries."""
    entries = [_write_entry(rng, number) for number in range(1, 1 + (FIRST_ENTRIES << index % NUM_SIZES))]
    wanted, several = rng.randrange(4, len(entries)), rng.randint(2, 4)
    words = {"text": "\n".join(entries), "wanted": str(wanted + 1), "several": str(several)}
    grammar = TemplateGrammar(rng, rng.choice(lexicon.TONES), words)
    messages = grammar.ask_and_answer(TEMPLATES["ask"], entries[wanted])
    return messages + grammar.ask_and_answer(TEMPLATES["follow_up"], "\n".join(entries[wanted - several : wanted]))


def _write_entry(rng: random.Random, number: int) -> str:
    topic = rng.choice(lexicon.TOPICS)
    words = draw_words(rng, **{key: topic[key] for key in ("quality", "thing", "place")}, count=range(2, 91))
    words |= draw_words(rng, name=lexicon.NAMES, town=lexicon.TOWNS, weekday=lexicon.WEEKDAYS)
    return TemplateGrammar(rng, lexicon.TONES[0], {**words, "number": str(number)}).expand(TEMPLATES["entry"])
