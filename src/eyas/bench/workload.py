"""Prompts to measure with, as ids, and the order in which two arms take them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from eyas.bench.bench_prompts import BUILTIN, ChatPrompt, load_prompts
from eyas.chat.render import render_prompt

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prompt:
    """The ids that serving feeds, the generation prompt included."""

    id: str
    ids: tuple[int, ...]


def load_eval_prompts(tokenizer: PreTrainedTokenizerBase, per_family: int) -> dict[str, list[Prompt]]:
    """The first prompts of each family of our own evaluation set. InputError for a tokenizer without chat template."""
    return tokenize_prompts(load_prompts(BUILTIN, per_family), tokenizer)


def tokenize_prompts(
    asked: Mapping[str, Sequence[ChatPrompt]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[Prompt]]:
    """In the target's chat template. InputError for a tokenizer without one."""
    return {
        task: [Prompt(one.id, tuple(render_prompt(one.messages, tokenizer))) for one in some]
        for task, some in asked.items()
    }


def interleave_tasks(by_task: Mapping[str, Sequence[Unit]]) -> list[Unit]:
    """One of each task in turn, so that a slow minute of the machine falls on all tasks alike."""
    return [unit for turn in zip_longest(*by_task.values()) for unit in turn if unit is not None]


def run_paired(
    arms: Mapping[str, Callable[[Unit], Result]], units: Sequence[Unit], repeats: int
) -> dict[str, list[list[Result]]]:
    """Run every unit in all arms back to back; results[arm][unit][repeat].

    The arm that begins changes from unit to unit and from round to round, so that neither always finds warm caches
    or the quieter half of a minute:

        round 0   unit 0: A B   unit 1: B A   unit 2: A B
        round 1   unit 0: B A   unit 1: A B   unit 2: B A
    """
    names = list(arms)
    results: dict[str, list[list[Result]]] = {name: [[] for _ in units] for name in names}
    for repeat in range(repeats):
        for index, unit in enumerate(units):
            first = (repeat + index) % len(names)
            for name in names[first:] + names[:first]:
                results[name][index].append(arms[name](unit))
    return results
