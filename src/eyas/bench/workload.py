"""Loads the prompts of a measurement by task, renders them to token ids, and runs them in all arms in rotated order.

With `turns=1` a prompt is the first user message of a conversation, with the system message if there is one. With more
turns, further prompts contain the answers before them (turns.py).
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.storage import AnyPath
from eyas.bench.config import BenchConfig, LoadConfig
from eyas.bench.turns import Ask, ChatPrompt, Chats, ask_target, ask_turns, prompt_id
from eyas.chat.conversation import Message, parse_messages
from eyas.chat.render import render_prompt
from eyas.data.sources.record_formats import REQUEST_KEYS, ParsedRecord, parse_record
from eyas.data.sources.source import Record, SourceConfig, read_records
from eyas.evalsets import FAMILIES, TURNS, example
from eyas.evaluation.replay import find_turns
from eyas.features.reader import Features
from eyas.model.target import Target

BUILTIN, BUILTIN_TURNS, SYNTHETIC = "builtin:eval", "builtin:turns", "synthetic"
MADE_PROMPTS = (BUILTIN, BUILTIN_TURNS, SYNTHETIC)  # not of a file
DEFAULT_LIMIT = 12  # prompts of each builtin family
TASK_KEYS = ("task", "category")  # keys that name a record's task, as in MT-bench and Spec-Bench

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, the generation prompt included. `turn`: as in `ChatPrompt`."""

    id: str
    ids: tuple[int, ...]
    turn: int = 1


Workload = Mapping[str, Sequence[Prompt]]
"""The prompts of each task, as token ids."""


def load_prompts(config: LoadConfig, limit: int | None, ask: Ask, per_task: int | None = None) -> Chats:
    """Returns prompts by task.

    Args:
        config: The prompts and the number of turns.
        limit: The most conversations of a file, or of each builtin family. None: all conversations of a file,
            DEFAULT_LIMIT of each family.
        ask: Answers the prompts before later turns.
        per_task: The most conversations of each task of a file; None for all.

    Raises:
        InputError: The file is missing or damaged, or holds no prompt.
    """
    indices, words, source = range(limit or DEFAULT_LIMIT), config.synthetic_words, config.prompts or BUILTIN
    if source == BUILTIN:
        return _builtin_prompts(indices)
    if source == SYNTHETIC:
        return {f"{words} words": [_synthetic_prompt(words, f"{config.seed} {index}", index) for index in indices]}
    if source == BUILTIN_TURNS:
        source, limit, per_task = str(TURNS), None, limit or DEFAULT_LIMIT
    chats = _read_chats(source, limit)
    if not chats:
        raise InputError(f"{source} contains no prompts in a form that `eyas prompts` accepts", "Use another file")
    return {
        task: [prompt for chat in some[:per_task] for prompt in ask_turns(chat, config.turns, ask)]
        for task, some in chats.items()
    }


def load_eval_prompts(tokenizer: PreTrainedTokenizerBase, per_family: int) -> dict[str, list[Prompt]]:
    """Returns the first prompts of each family of builtin:eval. Raises InputError without a chat template."""
    return tokenize_prompts(_builtin_prompts(range(per_family)), tokenizer)


def load_workload(config: BenchConfig, features_dir: AnyPath | None, target: Target) -> tuple[Workload, int]:
    """Returns task -> prompts for an engine in this process, and the number of prompts that are too long.

    The prompts come from `bench.prompts`. If it is not set, they are the prompts that were held out from training, in
    the features.

    Raises:
        InputError: No prompt is left.
    """
    if config.prompts is None:
        assert features_dir is not None, "without features, the prompts must be named"
        return _held_out_prompts(config, features_dir, target), 0
    limit = config.prompts_per_task if config.prompts in MADE_PROMPTS else None  # a file is cut by task
    chosen = load_prompts(config, limit, partial(ask_target, target, config.max_tokens), config.prompts_per_task)
    longest = target.info.max_positions - config.max_tokens
    workload, num_too_long = {}, 0
    for task, prompts in tokenize_prompts(chosen, target.tokenizer).items():
        if fitting := [prompt for prompt in prompts if len(prompt.ids) <= longest]:
            workload[task] = fitting
        num_too_long += len(prompts) - len(fitting)
    if not workload:
        room = f"no room for an answer of {config.max_tokens} tokens in the target's context"
        problem = f"Every prompt in {config.prompts} has more than {longest} tokens, which leaves {room}"
        raise InputError(problem, "Lower bench.max_tokens or set other bench.prompts")
    return workload, num_too_long


def tokenize_prompts(prompts: Chats, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Prompt]]:
    """Renders prompts with the chat template of the tokenizer. Raises InputError if it has no chat template."""
    return {
        task: [Prompt(one.id, tuple(render_prompt(one.messages, tokenizer, one.tools)), one.turn) for one in some]
        for task, some in prompts.items()
    }


def interleave_tasks(by_task: Mapping[str, Sequence[Unit]]) -> list[Unit]:
    """Returns the first unit of each task, then the second, and so on. So a slow minute affects all tasks equally."""
    return [unit for turn in zip_longest(*by_task.values()) for unit in turn if unit is not None]


def run_paired(
    arms: Mapping[str, Callable[[Unit], Result]],
    units: Sequence[Unit],
    repeats: int,
    is_cut_short: Callable[[], bool] = lambda: False,
) -> dict[str, list[list[Result]]]:
    """Runs every unit in all arms back to back and returns results[arm][unit][repeat].

    The first arm changes from unit to unit and from repeat to repeat. So no arm always runs with warm caches. The order
    with arms A and B:

        repeat 0   unit 0: A B   unit 1: B A   unit 2: A B
        repeat 1   unit 0: B A   unit 1: A B   unit 2: B A

    Args:
        arms: Arm name -> function that runs a unit.
        units: The units, such as prompts or blocks of requests.
        repeats: The number of runs of each unit in each arm.
        is_cut_short: Called after each run. If it returns True, no further unit runs, and the results so far are
            returned, without those of a unit that has not run in all arms.
    """
    names = list(arms)
    results: dict[str, list[list[Result]]] = {name: [[] for _ in units] for name in names}
    for repeat in range(repeats):
        for index, unit in enumerate(units):
            first = (repeat + index) % len(names)
            found: dict[str, Result] = {}
            for name in names[first:] + names[:first]:
                found[name] = arms[name](unit)
                if is_cut_short():
                    return results
            for name, result in found.items():
                results[name][index].append(result)
    return results


def _builtin_prompts(indices: Sequence[int]) -> Chats:
    def load(family: str, index: int) -> ChatPrompt:
        drawn = example(family, "eval", index)
        return ChatPrompt(drawn.id, parse_messages(drawn.prompt, drawn.id))

    return {family: [load(family, index) for index in indices] for family in FAMILIES}


def _synthetic_prompt(num_words: int, seed: str, index: int) -> ChatPrompt:
    """Returns a prompt of random words of builtin:eval. It starts with `index`, so the prefix cache does not match."""
    rng = random.Random(seed)
    families = list(FAMILIES)
    words: list[str] = []
    while len(words) < num_words:
        drawn = example(rng.choice(families), "train", rng.randrange(10_000))
        words += " ".join(message["content"] for message in drawn.prompt).split()
    start = rng.randrange(max(1, len(words) - num_words + 1))
    text = f"{index}: " + " ".join(words[start : start + num_words])
    return ChatPrompt(f"synthetic-{index}", (Message("user", text),))


def _read_chats(path: str, limit: int | None) -> dict[str, list[ChatPrompt]]:
    chats: dict[str, list[ChatPrompt]] = {}
    pairs = ((record, parse_record(record.value, keep_answers=True)) for record in read_records(SourceConfig(path)))
    for record, found in islice(((one, parsed) for one, parsed in pairs if isinstance(parsed, ParsedRecord)), limit):
        # The target writes an answer that is empty in the file.
        messages = tuple(m for m in found.messages if m.role != "assistant" or m.content or m.tool_calls)
        chats.setdefault(_task(record), []).append(ChatPrompt(record.id, messages, _tools(record.value)))
    return chats


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Returns the tools of a record, which may be a logged request."""
    values = [value, *map(value.get, REQUEST_KEYS)] if isinstance(value, dict) else []
    found = next((one["tools"] for one in values if isinstance(one, dict) and one.get("tools")), ())
    return tuple(found) if isinstance(found, list | tuple) else ()


def _task(record: Record) -> str:
    value: Any = record.value
    labels = (value.get(key) for key in TASK_KEYS) if isinstance(value, dict) else ()
    return next((label for label in labels if isinstance(label, str) and label), record.source)


def _held_out_prompts(config: BenchConfig, features_dir: AnyPath, target: Target) -> dict[str, list[Prompt]]:
    """Returns prompts by task. A prompt ends before the first token that the target generated in its turn."""
    features = Features(features_dir)
    features.check_target(target.digest)
    prompts: dict[str, list[Prompt]] = {}
    counts = Counter[str]()
    indices = features.indices("held_out")
    for index, (ids_T, loss_mask_T) in zip(indices, features.texts(indices), strict=True):
        row = features.manifest.rows[index]
        counts[row.task] += 1
        if counts[row.task] <= config.prompts_per_task:
            for turn, answer in find_turns(row.id, ids_T, loss_mask_T)[: config.turns]:
                prompt = Prompt(prompt_id(row.id, turn), tuple(ids_T[: answer.start].tolist()), turn)
                prompts.setdefault(row.task, []).append(prompt)
    if not prompts:
        raise InputError("The features hold no held-out prompt to measure with", "Raise capture.held_out")
    return prompts
