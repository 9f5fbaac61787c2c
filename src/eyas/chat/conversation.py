"""Conversations as they stand in prompts.jsonl and conversations/*.jsonl (design: one JSON object a line).

    prompts.jsonl   {"id", "source", "messages", "tags", "changed"}            messages: system?, user, user, ...
    conversations   {"id", "source", "messages", "tags", "changed", "turns"}   messages: system?, user, assistant, ...

An assistant message may also hold `"reasoning_content"` (the text that a server splits off as reasoning) and
`"tool_calls"` (as OpenAI writes them: the arguments are JSON as text).

`turns[i]` is the answer of the i-th assistant message: `{"token_ids", "loss_mask", "finish"}`, ids as the target
generated them, never the text tokenised again. The one exception is marked: `"ids": "rendered"` stands in the turn of a
server that returned text alone, whose ids come from rendering the answer once through the target's chat template.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from eyas.base.errors import InputError

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length"]
IdsSource = Literal["generated", "rendered"]
REQUIRED = ("id", "source", "messages", "tags")
OPTIONAL = ("changed", "turns")


@dataclass(frozen=True)
class ToolCall:
    """A function that an answer calls. arguments: JSON as text, as the model wrote it; it need not be valid."""

    id: str
    name: str
    arguments: str

    def to_json(self) -> dict[str, Any]:
        """As OpenAI has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Message:
    """One message as text. reasoning and tool_calls: of an assistant only, as a server split them from the content."""

    role: Role
    content: str
    reasoning: str | None = field(default=None, kw_only=True)
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """`{"role", "content"}`, and what else an answer holds. `chat.render` hands it to the chat template."""
        value: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            value["reasoning_content"] = self.reasoning
        if self.tool_calls:
            value["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return value


@dataclass(frozen=True)
class Turn:
    """One answer as generated, the end-of-turn token included where there is one."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]  # as long as token_ids
    finish: Finish  # "stop": ended by itself; "length": cut off
    ids_source: IdsSource = "generated"

    def to_json(self) -> dict[str, Any]:
        """The object that stands in `turns`."""
        mark = {} if self.ids_source == "generated" else {"ids": self.ids_source}
        return {"token_ids": list(self.token_ids), "loss_mask": list(self.loss_mask), "finish": self.finish, **mark}


@dataclass(frozen=True)
class Conversation:
    """A prompt (no assistant message) or an answered conversation.

    `turns` is empty, or holds one entry for each assistant message.
    """

    id: str
    source: str
    messages: tuple[Message, ...]
    tags: Mapping[str, str]
    changed: Mapping[str, int] = field(default_factory=dict)  # entity kind -> how many were changed for privacy
    turns: tuple[Turn, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The record of prompts.jsonl; with `turns`, that of conversations/*.jsonl."""
        record: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "messages": [message.to_json() for message in self.messages],
            "tags": dict(self.tags),
            "changed": dict(self.changed),
        }
        if self.turns:
            record["turns"] = [turn.to_json() for turn in self.turns]
        return record

    def to_line(self) -> bytes:
        """The record as one line of JSON in UTF-8, line end included."""
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(", ", ": ")).encode() + b"\n"


def parse_conversation(value: Any, location: str) -> Conversation:
    """The conversation of a JSON record. `where` (file and line) stands in the InputError for a record that is none."""
    check = _JsonChecker(location)
    record = check.object(value, "the record")
    for key in REQUIRED:
        check.require(key in record, f"a record without {key!r}", f"the keys {', '.join(REQUIRED)}")
    for key in record:
        known = (*REQUIRED, *OPTIONAL)
        check.require(key in known, f"the unknown key {key!r}", f"the keys {', '.join(known)}")
    messages = parse_messages(record["messages"], location)
    check.require(
        all(message.role != "system" for message in messages[1:]), "a system message later on", "it to come first"
    )
    tags = check.object(record["tags"], "tags")
    changed = check.object(record.get("changed", {}), "changed")
    turns = tuple(_parse_turn(turn, check) for turn in check.list(record.get("turns", []), "turns"))
    answers = sum(message.role == "assistant" for message in messages)
    check.require(len(turns) in (0, answers), f"{len(turns)} turns for {answers} answers", "one turn for each answer")
    return Conversation(
        id=check.text(record["id"], "id"),
        source=check.text(record["source"], "source"),
        messages=messages,
        tags={key: check.text(text, f"tags.{key}") for key, text in tags.items()},
        changed={key: check.whole(number, f"changed.{key}") for key, number in changed.items()},
        turns=turns,
    )


def parse_messages(value: Any, location: str) -> tuple[Message, ...]:
    """A list of `{"role", "content"}` as messages, at least one; the assistant's with what else `Message` has.

    Raises InputError that names `where`.
    """
    check = _JsonChecker(location)
    messages = [_parse_message(item, check) for item in check.list(value, "messages")]
    check.require(bool(messages), "no message", "at least one message")
    return tuple(messages)


def parse_message(value: Any, location: str) -> Message:
    """One message, as `to_json` wrote it. Raises InputError that names `where`."""
    return _parse_message(value, _JsonChecker(location))


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file, one a line. Raises InputError that names file and line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}:{number}"
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    raise InputError(
                        f"{where} is not JSON", "one JSON object a line", "make the file again with its stage"
                    ) from None
                yield parse_conversation(value, where)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a file of conversations", "check the path") from None


def read_conversation_dir(directory: Path) -> Iterator[Conversation]:
    """The conversations of every *.jsonl file of a directory, by name. Raises InputError where there is none."""
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise InputError(f"no *.jsonl in {directory}", "a directory of conversations", "run the stage that writes it")
    for path in paths:
        yield from read_conversations(path)


@dataclass(frozen=True)
class _JsonChecker:
    """Checks of JSON values; a failure is an InputError that names the place and never the content."""

    location: str

    def require(self, holds: bool, found: str, expected: str) -> None:
        if not holds:
            raise InputError(f"{found} at {self.location}", expected, "mend that line, or make the file again")

    def object(self, value: Any, name: str) -> dict[str, Any]:
        self.require(isinstance(value, dict), f"{name} that is no object", "a JSON object")
        return value

    def list(self, value: Any, name: str) -> list[Any]:
        self.require(isinstance(value, list), f"{name} that is no list", "a JSON list")
        return value

    def text(self, value: Any, name: str) -> str:
        self.require(isinstance(value, str), f"{name} that is no text", "a string")
        self.require(is_unicode(value), f"{name} with half a surrogate pair", "text that UTF-8 can hold")
        return value

    def whole(self, value: Any, name: str) -> int:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        self.require(good, f"{name} that is no whole number", "a number from 0 on")
        return value


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text; JSON can spell half a surrogate pair, which no tokenizer takes."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _parse_message(value: Any, check: _JsonChecker) -> Message:
    message = check.object(value, "a message")
    more = {"reasoning_content", "tool_calls"} if message.get("role") == "assistant" else set()
    fits = {"role", "content"} <= set(message) <= {"role", "content", *more}
    check.require(fits, "a message with other keys", "the keys role, content")
    role, reasoning = message["role"], message.get("reasoning_content")
    check.require(role in get_args(Role), "a message of another role", f"one of {', '.join(get_args(Role))}")
    return Message(
        role,
        check.text(message["content"], "content"),
        reasoning=None if reasoning is None else check.text(reasoning, "reasoning_content"),
        tool_calls=tuple(_parse_call(call, check) for call in check.list(message.get("tool_calls", []), "tool_calls")),
    )


def _parse_call(value: Any, check: _JsonChecker) -> ToolCall:
    call = check.object(value, "a tool call")
    check.require(set(call) == {"id", "type", "function"}, "a tool call with other keys", "the keys id, type, function")
    check.require(call["type"] == "function", "a tool call of another type", "function")
    function = check.object(call["function"], "a function")
    check.require(set(function) == {"name", "arguments"}, "a function with other keys", "the keys name, arguments")
    texts = (call["id"], "a tool call's id"), (function["name"], "a name"), (function["arguments"], "arguments")
    return ToolCall(*(check.text(text, name) for text, name in texts))


def _parse_turn(value: Any, check: _JsonChecker) -> Turn:
    turn = check.object(value, "a turn")
    keys = {"token_ids", "loss_mask", "finish"}
    fits = keys <= set(turn) <= {*keys, "ids"}
    check.require(fits, "a turn with other keys", "the keys token_ids, loss_mask, finish, ids")
    ids = tuple(check.whole(token, "a token id") for token in check.list(turn["token_ids"], "token_ids"))
    mask = tuple(check.list(turn["loss_mask"], "loss_mask"))
    check.require(all(isinstance(flag, bool) for flag in mask), "a loss_mask that is not all true or false", "booleans")
    check.require(bool(ids), "a turn without token ids", "at least one")
    check.require(len(ids) == len(mask), f"{len(ids)} token ids under {len(mask)} mask entries", "as many of both")
    check.require(turn["finish"] in get_args(Finish), "another finish", f"one of {', '.join(get_args(Finish))}")
    origin = turn.get("ids", "generated")
    check.require(origin in get_args(IdsSource), "ids of another origin", f"one of {', '.join(get_args(IdsSource))}")
    return Turn(ids, mask, turn["finish"], origin)
