"""Family `arithmetic`: word problems of two to four steps; the answer solves them step by step."""

import random
from pathlib import Path

from eyas.base.config import load_toml
from eyas.evalsets.template_grammar import NAMES, TONES, TOPICS, WEEKDAYS, Messages, TemplateGrammar, draw_words

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))


def write_arithmetic(rng: random.Random) -> Messages:
    """Returns one problem and its worked solution. All intermediate results are between 1 and 400."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    first, second = rng.sample(NAMES, 2)
    value = rng.randint(4, 60)
    words = draw_words(rng, thing=topic["thing"], place=topic["place"], weekday=WEEKDAYS, day=WEEKDAYS)
    words |= {"a": first, "b": second, "start": str(value), "tone": tone}
    grammar = TemplateGrammar(rng, tone, {**words, "quality": topic["quality"]})
    story = [grammar.expand(rng.choice(TEMPLATES["first_sentence"]))]
    steps = grammar.expand_some(TEMPLATES["open"], rng.choice((1, 1, 2)))
    for _ in range(rng.choice((2, 3, 3, 4))):
        operator = rng.choice("++--*" if value < 80 else "+--")
        if operator == "-" and value < 3:
            operator = "+"
        n = rng.randint(1, value - 1) if operator == "-" else rng.randint(2, 40 if operator == "+" else 5)
        result = value + n if operator == "+" else value - n if operator == "-" else value * n
        grammar.words |= {"n": str(n), "x": str(value), "y": str(result)}
        story.append(grammar.expand(rng.choice(TEMPLATES["event"][operator])))
        steps.extend(grammar.expand_some(TEMPLATES["step"][operator], 1))
        value = result
    story.append(grammar.expand(rng.choice(TEMPLATES["ask"])))
    steps.extend(grammar.expand_some(TEMPLATES["close"], 1))
    return [{"role": "user", "content": " ".join(story)}, {"role": "assistant", "content": " ".join(steps)}]
