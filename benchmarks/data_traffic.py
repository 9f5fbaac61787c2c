"""Part `traffic` of `make prove-data`: selects prompts from a mixed pool to match a small production log.

The tasks share their words (tea, crates, lamps), so only the question distinguishes them. The selection does not know
the task of a prompt; only the measurement does.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from data_options import Options
from pii_slots import SlotFiller
from pii_templates import Template, read_templates
from result_rows import Row

POOL, PRODUCTION, CHOSEN = 1600, 160, 120
MIX = {"maths": 0.4, "code": 0.25, "translation": 0.15, "rag": 0.2}  # shares of the tasks in production
ROUNDS = 5  # mixtures, each with other texts
MAX_DISTANCE = 0.1


@dataclass(frozen=True)
class Prompt:
    """A text and its task."""

    text: str
    task: str


@cache
def templates_by_task() -> dict[str, tuple[Template, ...]]:
    """Returns the templates of traffic.txt by task."""
    found: dict[str, tuple[Template, ...]] = {}
    for template in read_templates(Path(__file__).with_name("traffic.txt")):
        found[template.use] = (*found.get(template.use, ()), template)
    return found


def draw_prompt(task: str, seed: str) -> Prompt:
    """Returns one random prompt of a task."""
    rng = random.Random(f"traffic:{seed}")
    pieces = SlotFiller(rng, "en").fill(rng.choice(templates_by_task()[task]).text)
    return Prompt("".join(piece.text for piece in pieces), task)


def make_mixture(seed: str) -> tuple[list[Prompt], list[Prompt]]:
    """Returns a pool with equal shares of all tasks, and a production log with the shares of MIX."""
    tasks = sorted(templates_by_task())
    pool = [draw_prompt(tasks[number % len(tasks)], f"{seed}:pool:{number}") for number in range(POOL)]
    wanted = random.Random(f"{seed}:mix").choices(sorted(MIX), [MIX[task] for task in sorted(MIX)], k=PRODUCTION)
    return pool, [draw_prompt(task, f"{seed}:production:{number}") for number, task in enumerate(wanted)]


def task_distance(some: Sequence[Prompt], others: Sequence[Prompt]) -> float:
    """Returns the total variation distance between the task shares of two lists."""
    one, two = (Counter(prompt.task for prompt in prompts) for prompts in (some, others))
    return sum(abs(one[task] / len(some) - two[task] / len(others)) for task in one | two) / 2


def length_distance(some: Sequence[Prompt], others: Sequence[Prompt]) -> float:
    """Returns the Kolmogorov-Smirnov distance between the lengths of two lists, in characters."""
    one, two = (np.sort([len(prompt.text) for prompt in prompts]) for prompts in (some, others))
    at = np.union1d(one, two)
    gap = np.searchsorted(one, at, side="right") / len(one) - np.searchsorted(two, at, side="right") / len(two)
    return float(np.abs(gap).max())


def traffic(options: Options) -> Iterator[Row]:
    """Yields the median distances over ROUNDS mixtures, for the selection and for a uniform choice."""
    from eyas.data.select.traffic import TrafficModel

    found: dict[str, list[tuple[float, float]]] = {"chosen": [], "uniform": []}
    for number in range(ROUNDS):
        pool, production = make_mixture(f"{options.seed}:{number}")
        texts = [prompt.text for prompt in pool]
        fitted = TrafficModel.fit([prompt.text for prompt in production], texts, options.seed)
        lengths = np.array([len(text) for text in texts])
        selection = fitted.select(fitted.assign_cells(texts), lengths, CHOSEN, options.seed)
        assert len(selection.indices) == CHOSEN, "the selection has the requested size"
        uniform = random.Random(f"{options.seed}:{number}:uniform").sample(pool, CHOSEN)
        for name, some in (("chosen", [pool[place] for place in selection.indices]), ("uniform", uniform)):
            found[name].append((task_distance(some, production), length_distance(some, production)))
        print(
            f"mixture {number + 1} of {ROUNDS}: {found['chosen'][-1]}, uniform {found['uniform'][-1]}", file=sys.stderr
        )
    for place, what in enumerate(("total variation of the tasks", "KS distance of the lengths")):
        ours, plain = (median(values[place] for values in found[name]) for name in ("chosen", "uniform"))
        name = f"{what}, {CHOSEN} of {POOL} prompts against production (uniform choice: {plain:.3f})"
        yield Row(name, round(ours, 4), f"at most {MAX_DISTANCE}", ours <= MAX_DISTANCE)
