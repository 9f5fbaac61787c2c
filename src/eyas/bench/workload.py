"""Loads the prompts of a measurement by task, renders them to token ids, and runs them in all arms in rotated order.

A prompt is the first user message of a conversation, with the system message if there is one. Later turns are not used,
because they answer another model.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.storage import AnyPath
from eyas.bench.config import SYNTHETIC_WORDS, BenchConfig
from eyas.chat.conversation import Message, parse_messages
from eyas.chat.render import render_prompt
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import Record, SourceConfig, read_records
from eyas.evalsets import FAMILIES, example
from eyas.features.reader import Features
from eyas.model.target import Target

BUILTIN, SYNTHETIC = "builtin:eval", "synthetic"
DEFAULT_LIMIT = 12  # prompts of each family of builtin:eval
TASK_KEYS = ("task", "category")  # keys that name a record's task, as in MT-bench and Spec-Bench

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt as messages, for a server, which applies the chat template."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, the generation prompt included."""

    id: str
    ids: tuple[int, ...]


Chats = Mapping[str, Sequence[ChatPrompt]]
"""The prompts of each task, as messages."""
Workload = Mapping[str, Sequence[Prompt]]
"""The prompts of each task, as token ids."""


def load_prompts(source: str, limit: int | None, synthetic_words: int = SYNTHETIC_WORDS, seed: int = 0) -> Chats:
    """Returns prompts by task.

    Args:
        source: "builtin:eval", "synthetic", or a file that `prompts.source` accepts.
        limit: The most prompts of a file, or of each family of builtin:eval. None: all prompts of a file, DEFAULT_LIMIT
            of each family.
        synthetic_words: The number of words of a synthetic prompt.
        seed: The seed of synthetic prompts.

    Raises:
        InputError: The file is missing or damaged, or holds no prompt.
    """
    indices = range(limit or DEFAULT_LIMIT)
    if source == BUILTIN:
        return {family: [_builtin_prompt(family, index) for index in indices] for family in FAMILIES}
    if source == SYNTHETIC:
        prompts = [_synthetic_prompt(synthetic_words, f"{seed} {index}", index) for index in indices]
        return {f"{synthetic_words} words": prompts}
    return _load_file(source, limit)


def load_eval_prompts(tokenizer: PreTrainedTokenizerBase, per_family: int) -> dict[str, list[Prompt]]:
    """Returns the first prompts of each family of builtin:eval. Raises InputError without a chat template."""
    return tokenize_prompts(load_prompts(BUILTIN, per_family), tokenizer)


def load_workload(config: BenchConfig, features_dir: AnyPath | None, target: Target) -> tuple[Workload, int]:
    """Returns task -> prompts for an engine in this process, and the number of prompts that are too long.

    The prompts come from `bench.prompts`. If it is not set, they are the prompts that were held out from training, in
    the features.

    Raises:
        InputError: No prompt is left.
    """
    if config.prompts is None:
        assert features_dir is not None, "without features, the prompts must be named"
        return _held_out_prompts(config.prompts_per_task, features_dir, target), 0
    limit = config.prompts_per_task if config.prompts in (BUILTIN, SYNTHETIC) else None  # a file is cut by task
    loaded = load_prompts(config.prompts, limit, config.synthetic_words, config.seed)
    chosen = {task: prompts[: config.prompts_per_task] for task, prompts in loaded.items()}
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
        task: [Prompt(prompt.id, tuple(render_prompt(prompt.messages, tokenizer))) for prompt in some]
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


def _builtin_prompt(family: str, index: int) -> ChatPrompt:
    drawn = example(family, "eval", index)
    return ChatPrompt(drawn.id, tuple(parse_messages(drawn.prompt, drawn.id)))


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


def _load_file(path: str, limit: int | None) -> Chats:
    prompts: dict[str, list[ChatPrompt]] = {}
    count = 0
    for record in read_records(SourceConfig(path)):
        parsed = parse_record(record.value, keep_system=True)
        if not isinstance(parsed, ParsedRecord) or (limit is not None and count >= limit):
            continue
        first = next(index for index, message in enumerate(parsed.messages) if message.role == "user")
        prompts.setdefault(_task(record), []).append(ChatPrompt(record.id, tuple(parsed.messages[: first + 1])))
        count += 1
    if not prompts:
        raise InputError(f"{path} contains no prompts in a form that `eyas prompts` accepts", "Use another file")
    return prompts


def _task(record: Record) -> str:
    value: Any = record.value
    labels = (value.get(key) for key in TASK_KEYS) if isinstance(value, dict) else ()
    return next((label for label in labels if isinstance(label, str) and label), record.source)


def _held_out_prompts(per_task: int, features_dir: AnyPath, target: Target) -> dict[str, list[Prompt]]:
    features = Features(features_dir)
    features.check_target(target.digest)
    prompts: dict[str, list[Prompt]] = {}
    indices = features.indices("held_out")
    for index, (ids_T, loss_mask_T) in zip(indices, features.texts(indices), strict=True):
        row = features.manifest.rows[index]
        of_task = prompts.setdefault(row.task, [])
        if len(of_task) < per_task:
            # The prompt ends before the first generated token.
            of_task.append(Prompt(row.id, tuple(ids_T[: int(loss_mask_T.int().argmax())].tolist())))
    if not prompts:
        raise InputError("The features hold no held-out prompt to measure with", "Raise capture.held_out")
    return prompts
