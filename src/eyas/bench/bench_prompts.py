"""What is asked: messages by task, from our evaluation set, from a file, or made up to a length.

Of a conversation the first user message is asked, with a system message before it: later ones rest on answers that
another model gave.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.base.errors import InputError
from eyas.bench.client.config import SYNTHETIC_WORDS
from eyas.chat.conversation import Message, parse_messages
from eyas.data.sources.record_formats import ParsedRecord, parse_record
from eyas.data.sources.source import Record, SourceConfig, open_source, read_shard
from eyas.evalsets import FAMILIES, example

BUILTIN, SYNTHETIC = "builtin:eval", "synthetic"
DEFAULT_LIMIT = 12  # prompts of a family where no limit is set
TASK_KEYS = ("task", "category")  # of a record, as MT-bench and Spec-Bench have them


@dataclass(frozen=True)
class ChatPrompt:
    """One prompt as messages."""

    id: str
    messages: tuple[Message, ...]


def load_prompts(
    source: str, limit: int | None, synthetic_words: int = SYNTHETIC_WORDS, seed: int = 0
) -> dict[str, list[ChatPrompt]]:
    """By task. limit: prompts of a file, or of each family of `builtin:eval`; None: all, FEW.

    InputError for a file that is missing, damaged or without prompts.
    """
    if source == BUILTIN:
        return {family: [_written(family, index) for index in range(limit or DEFAULT_LIMIT)] for family in FAMILIES}
    if source == SYNTHETIC:
        made_up = [_made_up(synthetic_words, f"{seed} {index}", index) for index in range(limit or DEFAULT_LIMIT)]
        return {f"{synthetic_words} words": made_up}
    return _from_file(source, limit)


def _written(family: str, index: int) -> ChatPrompt:
    one = example(family, "eval", index)
    return ChatPrompt(one.id, tuple(parse_messages(one.prompt, one.id)))


def _made_up(num_words: int, seed: str, index: int) -> ChatPrompt:
    """Words of our grammar without sense, another beginning each time: no prefix is in a server's memory."""
    pick = random.Random(seed)
    families = list(FAMILIES)
    words: list[str] = []
    while len(words) < num_words:
        one = example(pick.choice(families), "train", pick.randrange(10_000))
        words += " ".join(message["content"] for message in one.prompt).split()
    start = pick.randrange(max(1, len(words) - num_words + 1))
    return ChatPrompt(
        f"synthetic-{index}", (Message("user", f"{index}: " + " ".join(words[start : start + num_words])),)
    )


def _from_file(path: str, limit: int | None) -> dict[str, list[ChatPrompt]]:
    source = open_source(SourceConfig(path), 0)
    found: dict[str, list[ChatPrompt]] = {}
    count = 0
    for piece in source.shards:
        for record in read_shard(source, piece):
            shaped = parse_record(record.value, keep_system=True) if record.is_json else None
            if not isinstance(shaped, ParsedRecord) or (limit is not None and count >= limit):
                continue
            found.setdefault(_task(record), []).append(ChatPrompt(record.id, _first_turn(shaped.messages)))
            count += 1
    if not found:
        raise InputError(f"no prompt in {path}", "records of a shape that `eyas prompts` takes", "name another file")
    return found


def _first_turn(messages: Sequence[Message]) -> tuple[Message, ...]:
    first = next(place for place, message in enumerate(messages) if message.role == "user")
    return tuple(messages[: first + 1])


def _task(record: Record) -> str:
    value: Any = record.value
    labels = (value.get(key) for key in TASK_KEYS) if isinstance(value, dict) else ()
    return next((label for label in labels if isinstance(label, str) and label), record.source)
