"""Prompts of six tasks from templates of our own, whose task is known: what a traffic log and a pool are mixed from.

Words are drawn from one list for all tasks, so that only what is asked, and how it is laid out, tells tasks apart.
"""

import random
from collections.abc import Callable, Sequence

_WORDS = """
river stone cloud lamp garden winter letter music bridge orange silver market harbour engine window paper forest teacher
doctor candle mountain kitchen village ticket painter copper basket summer pocket ladder blanket mirror thunder castle
"""
_NAMES = "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Mara Nils Olga Paul"
_VERBS = "repair sell carry paint build measure clean count borrow find hide visit open close watch"
WORDS, NAMES, VERBS = _WORDS.split(), _NAMES.split(), _VERBS.split()
SMALL = ["the", "a", "of", "in", "with", "and", "to", "for", "near", "under"]
LANGUAGES = ["German", "French", "Spanish", "Italian", "Dutch", "Polish", "Swedish"]
PRODUCTION: dict[str, float] = {"maths": 0.35, "code": 0.3, "translation": 0.2, "rag": 0.15}
POOL: dict[str, float] = {"maths": 1, "code": 1, "translation": 1, "rag": 1, "summary": 1, "chat": 1}


def draw(rng: random.Random, number: int, mix: dict[str, float]) -> tuple[list[str], list[str]]:
    """Prompts and the task of each."""
    tasks = rng.choices(list(mix), list(mix.values()), k=number)
    return [TASKS[task](rng) for task in tasks], tasks


def tv_of_tasks(one: Sequence[str], other: Sequence[str]) -> float:
    return sum(abs(one.count(task) / len(one) - other.count(task) / len(other)) for task in TASKS) / 2


def maths(rng: random.Random) -> str:
    name, thing, (a, b, c) = rng.choice(NAMES), rng.choice(WORDS), [rng.randint(2, 90) for _ in range(3)]
    parts = [
        f"{name} has {a} {thing}s and buys {b} more.",
        f"Each {thing} costs {c} dollars.",
        f"Then {rng.choice(NAMES)} takes away {c} of them.",
        f"On {rng.choice(['Monday', 'Friday', 'Sunday'])} the price falls by {c}%.",
        f"{rng.choice(NAMES)} sells {a} {rng.choice(WORDS)}s for ${b} each.",
    ]
    ends = [f"How many {thing}s are left?", "What is the total cost?", "How many dollars does he earn per week?"]
    return " ".join([*rng.sample(parts, rng.randint(2, 5)), rng.choice(ends)])


def code(rng: random.Random) -> str:
    name, thing, digit = "_".join(rng.sample(WORDS, 2)), rng.choice(WORDS), rng.randint(0, 9)
    return rng.choice(
        [
            f"Write a Python function `{name}` that takes a list of {thing}s and returns the longest. Add type hints.",
            f'def {name}({thing}: list[int]) -> int:\n    """Return the sum.\n\n    >>> {name}([{digit}])\n    """\n',
            f"Fix:\n```python\nfor i in range(len({thing})):\n    if {thing}[i] > {digit}:\n        return {name}\n```",
            f"Explain this SQL: SELECT {thing}, COUNT(*) FROM {name} WHERE {thing} > {digit} GROUP BY {thing};",
        ]
    )


def translation(rng: random.Random) -> str:
    language = rng.choice(LANGUAGES)
    starts = [
        f"Translate into {language}:\n\n",
        f"How do you say this in {language}? ",
        f"From English to {language}: ",
    ]
    return rng.choice(starts) + _paragraph(rng, 1, 3)


def rag(rng: random.Random) -> str:
    passages = "\n\n".join(f"[{number}] {_paragraph(rng, 3, 7)}" for number in range(1, rng.randint(4, 7)))
    question = (
        f"{rng.choice(['Who', 'Where', 'When'])} did {rng.choice(NAMES)} {rng.choice(VERBS)} the {rng.choice(WORDS)}?"
    )
    return f"Answer the question using only the passages below.\n\n{passages}\n\nQuestion: {question}"


def summary(rng: random.Random) -> str:
    starts = ["Summarize this article in two sentences.\n\n", "TL;DR:\n\n", "Give me the key points of this text:\n\n"]
    return rng.choice(starts) + _paragraph(rng, 8, 25)


def chat(rng: random.Random) -> str:
    thing, name = rng.choice(WORDS), rng.choice(NAMES)
    return rng.choice(
        [
            f"I feel a bit lost with my {thing} lately, any advice?",
            f"What's your opinion on {thing}s? My friend {name} loves them.",
            f"Can you recommend a good {thing} for my holiday with {name}?",
            f"Tell me a story about a {thing} and a {rng.choice(WORDS)}.",
            f"Why do people {rng.choice(VERBS)} {thing}s? {_sentence(rng)}",
            f"Write a short poem about a {thing} in {rng.choice(['spring', 'autumn'])}.",
        ]
    )


TASKS: dict[str, Callable[[random.Random], str]] = {
    "maths": maths,
    "code": code,
    "translation": translation,
    "rag": rag,
    "summary": summary,
    "chat": chat,
}


def _sentence(rng: random.Random) -> str:
    words = [rng.choice(rng.choice([WORDS, WORDS, SMALL, VERBS])) for _ in range(rng.randint(6, 18))]
    return " ".join(words).capitalize() + "."


def _paragraph(rng: random.Random, low: int, high: int) -> str:
    return " ".join(_sentence(rng) for _ in range(rng.randint(low, high)))
