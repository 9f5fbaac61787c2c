"""Family `chat`: a system message that sets the tone, then two or three turns of advice about one topic."""

import random
from pathlib import Path

from eyas.base.config import load_toml
from eyas.evalsets import template_grammar as lexicon
from eyas.evalsets.template_grammar import Messages, TemplateGrammar, draw_words

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))


def write_chat(rng: random.Random) -> Messages:
    """Returns one conversation in the OpenAI form: a system message, then two or three turns."""
    topic, tone = rng.choice(lexicon.TOPICS), rng.choice(lexicon.TONES)
    facts = draw_words(
        rng, name=lexicon.NAMES, town=lexicon.TOWNS, month=lexicon.MONTHS, weekday=lexicon.WEEKDAYS, number=range(3, 61)
    )
    grammar = TemplateGrammar(rng, tone, {**topic, **facts, "tone": tone})
    messages = [{"role": "system", "content": grammar.expand(rng.choice(TEMPLATES["system"]))}]
    for turn in range(rng.choice((2, 2, 3))):
        question = grammar.expand(rng.choice(TEMPLATES["follow_up"] if turn else TEMPLATES["opening"]))
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": " ".join(_write_reply(grammar, first=turn == 0))})
    return messages


def _write_reply(grammar: TemplateGrammar, first: bool) -> list[str]:
    rng = grammar.rng
    if first:
        sentences, count = grammar.expand_some(TEMPLATES["greeting"], 1), rng.choice((3, 4, 5))
    else:
        sentences, count = grammar.expand_some(TEMPLATES["answer_to_follow_up"], rng.choice((1, 2))), 3
    sentences += grammar.expand_some(TEMPLATES["advice"], count)
    return sentences + (grammar.expand_some(TEMPLATES["closing"], 1) if rng.random() < 0.5 else [])
