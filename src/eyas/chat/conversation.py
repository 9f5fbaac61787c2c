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

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasPath, ConfigDict, Field, NonNegativeInt, ValidationError

from eyas.base.errors import InputError
from eyas.base.json_parser import describe_error, parse_json
from eyas.base.storage import convert_read_errors

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length"]
IdsSource = Literal["generated", "rendered"]
MODE_TAG = "mode"  # the name of the conversation's mode
NO_OTHER_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ToolCall:
    """A function call in an answer. `arguments` is the JSON text of the model, which may be invalid JSON."""

    __pydantic_config__ = NO_OTHER_KEYS
    id: str
    name: Annotated[str, Field(validation_alias=AliasPath("function", "name"))]
    arguments: Annotated[str, Field(validation_alias=AliasPath("function", "arguments"))]
    type: Literal["function"] = "function"

    def to_json(self) -> dict[str, Any]:
        """Returns the tool call as a JSON object in OpenAI's form."""
        return {"id": self.id, "type": self.type, "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class Message:
    """One message as text. Only an assistant message has `reasoning` and `tool_calls`, separate from `content`."""

    __pydantic_config__ = NO_OTHER_KEYS
    role: Role
    content: str
    reasoning: Annotated[str | None, Field(validation_alias="reasoning_content")] = field(default=None, kw_only=True)
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
class TemplateMessage(Message):
    """A message with keys that only chat templates read: tool calls, tool results, a name."""

    extra_fields: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Returns the message as the template gets it."""
        return {"role": self.role, "content": self.content, **self.extra_fields}


@dataclass(frozen=True)
class Turn:
    """The token ids of one answer.

    Attributes:
        token_ids: The ids, with the end-of-turn token if the target generated one.
        loss_mask: For each id, True if training supervises it.
        finish: "stop" if the target ended the answer, "length" if the token limit cut it.
        ids_source: "generated" if the ids are those of the target, "rendered" if a server returned only text.
    """

    __pydantic_config__ = NO_OTHER_KEYS
    token_ids: tuple[NonNegativeInt, ...]
    loss_mask: tuple[bool, ...]
    finish: Finish
    ids_source: Annotated[IdsSource, Field(validation_alias="ids")] = "generated"

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

    __pydantic_config__ = NO_OTHER_KEYS
    id: str
    source: str
    messages: tuple[Message, ...]
    tags: Mapping[str, str]
    changed: Mapping[str, NonNegativeInt] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    template_variables: Annotated[Mapping[str, Any], Field(validation_alias="chat_template_kwargs")] = field(
        default_factory=dict
    )

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


def find_user_turns(messages: Sequence[Message]) -> tuple[str, ...]:
    """Returns the texts of the user's messages."""
    return tuple(message.content for message in messages if message.role == "user")


def digest_messages(messages: Sequence[Message]) -> bytes:
    """Returns a digest of 8 bytes of the messages. Equal conversations have equal digests."""
    return hashlib.blake2b(json.dumps([message.to_json() for message in messages]).encode(), digest_size=8).digest()


def parse_conversation(line: bytes, location: str) -> Conversation:
    """Parses a JSON record. Raises InputError, which names `location` (file and line), if the record is invalid."""
    with _convert_errors(location):
        found = parse_json(Conversation, line)
        _check_messages(found.messages)
        if any(message.role == "system" for message in found.messages[1:]):
            raise ValueError("a system message is not the first message")
        answers = sum(message.role == "assistant" for message in found.messages)
        if len(found.turns) not in (0, answers):
            raise ValueError(f"it has {len(found.turns)} turns for {answers} assistant messages")
        for ids, mask in ((turn.token_ids, turn.loss_mask) for turn in found.turns):
            if not ids:
                raise ValueError("a turn has no token ids")
            if len(ids) != len(mask):
                raise ValueError(f"a turn has {len(ids)} token ids, but {len(mask)} entries in loss_mask")
        return found


def parse_messages(value: Any, location: str) -> tuple[Message, ...]:
    """Parses a JSON list of at least one message. Raises InputError, which names `location`, if it is invalid."""
    with _convert_errors(location):
        messages = parse_json(tuple[Message, ...], json.dumps(value))
        _check_messages(messages)
        return messages


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise ValueError("messages is empty")
    if any(m.role != "assistant" and (m.reasoning is not None or m.tool_calls) for m in messages):
        raise ValueError("a message that is not of the assistant has reasoning_content or tool_calls")


@contextlib.contextmanager
def _convert_errors(location: str) -> Iterator[None]:
    """Converts a ValueError in the `with` body to an InputError that names the location but not the content."""
    try:
        yield
    except ValueError as error:
        problem = describe_error(error) if isinstance(error, ValidationError) else error
        raise InputError(f"{location}: {problem}", "Correct that line, or run the stage that writes it again") from None


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Yields the conversations of a file of JSON lines. Raises InputError that names the file and the line."""
    with convert_read_errors(path, "Check the path"), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield parse_conversation(line, f"{path}:{number}")


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
