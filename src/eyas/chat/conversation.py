"""Conversations, and their records in prompts.jsonl and conversations/*.jsonl (one JSON object a line).

    file                     keys of a record                             roles of the messages
    prompts.jsonl            id, source, messages, tags, changed          system (optional), user, user, ...
    conversations/*.jsonl    id, source, messages, tags, changed, turns   system (optional), user, assistant, user, ...

A conversation of a mode (recipe keys `respond.modes`) also has `"chat_template_kwargs"`, the variables of its mode.
An assistant message may also have `"reasoning_content"`, the text that a server separates as reasoning, and
`"tool_calls"` in OpenAI's form, where the arguments are JSON text.

`turns[i]` has the token ids of the i-th assistant message: `{"token_ids", "loss_mask", "finish"}`. The ids are those
that the target generated; the text is not tokenized again. If a server returned only text, the ids come from rendering
the answer with the target's chat template. Such a turn also has `"ids": "rendered"`.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from eyas.base.errors import InputError

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length"]
IdsSource = Literal["generated", "rendered"]
MODE_TAG = "mode"  # the name of the conversation's mode
REQUIRED = ("id", "source", "messages", "tags")
OPTIONAL = ("changed", "turns", "chat_template_kwargs")


@dataclass(frozen=True)
class ToolCall:
    """A function call in an answer. `arguments` is the JSON text of the model, which may be invalid JSON."""

    id: str
    name: str
    arguments: str

    def to_json(self) -> dict[str, Any]:
        """Returns the tool call as a JSON object in OpenAI's form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Message:
    """One message as text. Only an assistant message has `reasoning` and `tool_calls`, separate from `content`."""

    role: Role
    content: str
    reasoning: str | None = field(default=None, kw_only=True)
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Returns `{"role", "content"}`, with "reasoning_content" and "tool_calls" if the message has them."""
        value: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            value["reasoning_content"] = self.reasoning
        if self.tool_calls:
            value["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return value


@dataclass(frozen=True)
class Turn:
    """The token ids of one answer.

    Attributes:
        token_ids: The ids, with the end-of-turn token if the target generated one.
        loss_mask: For each id, True if training supervises it.
        finish: "stop" if the target ended the answer, "length" if the token limit cut it.
        ids_source: "generated" if the ids are those of the target, "rendered" if a server returned only text.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    finish: Finish
    ids_source: IdsSource = "generated"

    def to_json(self) -> dict[str, Any]:
        """Returns the turn as an entry of a record's `turns`."""
        mark = {} if self.ids_source == "generated" else {"ids": self.ids_source}
        return {"token_ids": list(self.token_ids), "loss_mask": list(self.loss_mask), "finish": self.finish, **mark}


@dataclass(frozen=True)
class Conversation:
    """A prompt, which has no assistant message, or an answered conversation.

    Attributes:
        id: The id of the record.
        source: The name of the source of the prompt.
        messages: The messages in order.
        tags: Properties of the prompt by name, such as its task and language.
        changed: The number of values that were replaced for privacy, by kind of entity.
        turns: One turn for each assistant message, or ().
        template_variables: Variables of the target's chat template, for example {"enable_thinking": False}.
    """

    id: str
    source: str
    messages: tuple[Message, ...]
    tags: Mapping[str, str]
    changed: Mapping[str, int] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the record of the conversation. It has the key `turns` if the conversation has turns."""
        record: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "messages": [message.to_json() for message in self.messages],
            "tags": dict(self.tags),
            "changed": dict(self.changed),
        }
        if self.turns:
            record["turns"] = [turn.to_json() for turn in self.turns]
        if self.template_variables:
            record["chat_template_kwargs"] = dict(self.template_variables)
        return record

    def to_line(self) -> bytes:
        """Returns the record as one line of JSON in UTF-8, with the line break."""
        return json.dumps(self.to_json(), ensure_ascii=False).encode() + b"\n"


def parse_conversation(value: Any, location: str) -> Conversation:
    """Parses a JSON record. Raises InputError, which names `location` (file and line), if the record is invalid."""
    check = _JsonChecker(location)
    record = check.keys(value, "the record", REQUIRED, OPTIONAL)
    messages = parse_messages(record["messages"], location)
    later_roles = [message.role for message in messages[1:]]
    check.require("system" not in later_roles, "a system message is not the first message")
    tags = check.object(record["tags"], "tags")
    changed = check.object(record.get("changed", {}), "changed")
    turns = tuple(_parse_turn(turn, check) for turn in check.list(record.get("turns", []), "turns"))
    answers = sum(message.role == "assistant" for message in messages)
    check.require(len(turns) in (0, answers), f"it has {len(turns)} turns for {answers} assistant messages")
    return Conversation(
        id=check.text(record["id"], "id"),
        source=check.text(record["source"], "source"),
        messages=messages,
        tags={key: check.text(text, f"tags.{key}") for key, text in tags.items()},
        changed={key: check.natural(number, f"changed.{key}") for key, number in changed.items()},
        turns=turns,
        template_variables=check.object(record.get("chat_template_kwargs", {}), "chat_template_kwargs"),
    )


def parse_messages(value: Any, location: str) -> tuple[Message, ...]:
    """Parses a list of at least one message. Raises InputError, which names `location`, if it is invalid."""
    check = _JsonChecker(location)
    messages = [_parse_message(item, check) for item in check.list(value, "messages")]
    check.require(bool(messages), "messages is empty")
    return tuple(messages)


def parse_message(value: Any, location: str) -> Message:
    """Parses one message in the form of `Message.to_json`. Raises InputError, which names `location`."""
    return _parse_message(value, _JsonChecker(location))


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yields the conversations of a file of JSON lines. Raises InputError that names the file and the line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                location = f"{path}:{number}"
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    raise InputError(f"{location} is not valid JSON", "Run the stage that writes it again") from None
                yield parse_conversation(value, location)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Check the path") from None


def read_conversation_dir(directory: Path) -> Iterator[Conversation]:
    """Yields the conversations of all *.jsonl files of a directory, in the order of their names. Raises InputError."""
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise InputError(f"{directory} has no *.jsonl file", "Check the path, or run the stage that writes it")
    for path in paths:
        yield from read_conversations(path)


def is_unicode(text: str) -> bool:
    """Returns True if UTF-8 can encode the text, False if it contains half a surrogate pair, which JSON can spell."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


@dataclass(frozen=True)
class _JsonChecker:
    """A checker of JSON values. A failed check raises InputError, which names the location but not the content."""

    location: str

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise InputError(f"{self.location}: {problem}", "Correct that line, or run the stage that writes it again")

    def object(self, value: Any, name: str) -> dict[str, Any]:
        self.require(isinstance(value, dict), f"{name} is not a JSON object")
        return value

    def list(self, value: Any, name: str) -> list[Any]:
        self.require(isinstance(value, list), f"{name} is not a JSON list")
        return value

    def text(self, value: Any, name: str) -> str:
        self.require(isinstance(value, str), f"{name} is not a string")
        self.require(is_unicode(value), f"{name} has half a surrogate pair, which UTF-8 cannot encode")
        return value

    def natural(self, value: Any, name: str) -> int:
        is_natural = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        self.require(is_natural, f"{name} is not a whole number of at least 0")
        return value

    def choice(self, value: Any, choices: Any, name: str) -> Any:
        allowed = get_args(choices)
        self.require(value in allowed, f"{name} is not one of {', '.join(allowed)}")
        return value

    def keys(self, value: Any, name: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
        item = self.object(value, name)
        for key in required:
            self.require(key in item, f"{name} has no {key!r}")
        for key in item:
            self.require(key in (*required, *optional), f"{name} has the unknown key {key!r}")
        return item


def _parse_message(value: Any, check: _JsonChecker) -> Message:
    is_answer = isinstance(value, dict) and value.get("role") == "assistant"
    optional = ("reasoning_content", "tool_calls") if is_answer else ()
    message = check.keys(value, "a message", ("role", "content"), optional)
    reasoning = message.get("reasoning_content")
    return Message(
        check.choice(message["role"], Role, "the role of a message"),
        check.text(message["content"], "content"),
        reasoning=None if reasoning is None else check.text(reasoning, "reasoning_content"),
        tool_calls=tuple(_parse_call(call, check) for call in check.list(message.get("tool_calls", []), "tool_calls")),
    )


def _parse_call(value: Any, check: _JsonChecker) -> ToolCall:
    call = check.keys(value, "a tool call", ("id", "type", "function"))
    check.require(call["type"] == "function", "the type of a tool call is not function")
    function = check.keys(call["function"], "the function of a tool call", ("name", "arguments"))
    return ToolCall(
        check.text(call["id"], "the id of a tool call"),
        check.text(function["name"], "the name of a function"),
        check.text(function["arguments"], "arguments"),
    )


def _parse_turn(value: Any, check: _JsonChecker) -> Turn:
    turn = check.keys(value, "a turn", ("token_ids", "loss_mask", "finish"), ("ids",))
    ids = tuple(check.natural(token, "a token id") for token in check.list(turn["token_ids"], "token_ids"))
    mask = tuple(check.list(turn["loss_mask"], "loss_mask"))
    check.require(all(isinstance(flag, bool) for flag in mask), "loss_mask is not a list of true and false")
    check.require(bool(ids), "a turn has no token ids")
    check.require(len(ids) == len(mask), f"a turn has {len(ids)} token ids, but {len(mask)} entries in loss_mask")
    finish = check.choice(turn["finish"], Finish, "finish")
    return Turn(ids, mask, finish, check.choice(turn.get("ids", "generated"), IdsSource, "ids"))
