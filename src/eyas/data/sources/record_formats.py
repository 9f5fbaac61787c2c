"""The record shapes that prompts come in. Only what the user said is kept; on request a leading system message, too.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}    OpenAI; also "conversation"
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}, ...]}      ShareGPT
    {"turns": ["first user message", "second user message"]}                               MT-bench
    {"prompt": "..."}   {"question": "..."}                                                HumanEval, GSM8K
    {"instruction": "...", "input": "..."}                                                 Alpaca; or "context": Dolly
    {"text": "..."}   "..."                                                                plain text
    {"body": {"messages": ...}}   {"request": {...}}                                       request logs, OpenAI batches
    {"rendered": "<|im_start|>user ..."}                                                   logs of vLLM and SGLang

The first of these keys that a record has names its shape; every other key is left behind. Answers of the source are
thrown away: the target writes its own.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from eyas.chat.conversation import Message, is_unicode
from eyas.data.sources.template_parser import parse_rendered_prompt

# Reasons to drop a record, as the ledger names them.
UNKNOWN_SHAPE = "unknown_shape"
NO_USER_TURN = "no_user_turn"
NOT_TEXT = "not_text"  # images, audio, half a surrogate pair
TOOL_TURNS = "tool_turns"  # what the user says next rests on an output that we do not have
UNKNOWN_TEMPLATE = "unknown_template"  # a log's prompt with marks of a chat template that is not known
CUT_BY_LOG = "cut_by_log"

SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
SHAREGPT_ROLES |= {"bard": "assistant", "bing": "assistant", "model": "assistant", "system": "system", "tool": "tool"}
SHAREGPT_ROLES |= {"function_call": "tool", "function_response": "tool", "observation": "tool"}
REQUEST_KEYS = ("body", "request", "payload")
_SHAPE_KEYS = (
    "messages",
    "conversation",
    "conversations",
    "turns",
    "prompt",
    "question",
    "instruction",
    "text",
    "rendered",
)
READ_KEYS = frozenset((*_SHAPE_KEYS, "input", "context", "truncated", *REQUEST_KEYS))
"""All that is read of a record."""


@dataclass(frozen=True)
class ParsedRecord:
    """The part of a record that is kept."""

    shape: str
    messages: tuple[Message, ...]  # system?, user, user, ...
    num_answers: int  # assistant turns thrown away


@dataclass(frozen=True)
class RejectedRecord:
    """Why a record is not kept, and the shape it had, where it had one."""

    reason: str
    shape: str | None


def parse_record(value: Any, keep_system: bool = False) -> ParsedRecord | RejectedRecord:
    """What is kept of one JSON value, or why nothing is."""
    shaped = _read(value)
    if isinstance(shaped, RejectedRecord) or keep_system:
        return shaped
    return replace(shaped, messages=tuple(message for message in shaped.messages if message.role == "user"))


def _read(value: Any) -> ParsedRecord | RejectedRecord:
    if isinstance(value, str):
        return _from_texts("text", [value])
    if not isinstance(value, dict):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    for shape in ("messages", "conversation"):
        if shape in value:
            return _from_messages(value[shape], shape)
    if "conversations" in value:
        return _from_sharegpt(value["conversations"])
    if "turns" in value:
        return _from_texts("turns", value["turns"])
    if isinstance(value.get("prompt"), list):  # preference sets keep a conversation there
        return _from_messages(value["prompt"], "prompt")
    for shape in ("prompt", "question"):
        if shape in value:
            return _from_texts(shape, [value[shape]])
    if "instruction" in value:
        parts = [value["instruction"], value.get("input") or value.get("context") or ""]
        if not all(isinstance(part, str) for part in parts):
            return RejectedRecord(NOT_TEXT, "instruction")
        return _from_texts("instruction", ["\n\n".join(part for part in parts if part)])
    if "text" in value:
        return _from_texts("text", [value["text"]])
    return _from_log(value)


def _from_log(value: dict[str, Any]) -> ParsedRecord | RejectedRecord:
    """A request inside a log's record, as an object or as JSON in a string."""
    if value.get("truncated") is True:
        return RejectedRecord(CUT_BY_LOG, "log")
    if isinstance(value.get("rendered"), str):
        said = parse_rendered_prompt(value["rendered"])
        if said is None:
            return RejectedRecord(UNKNOWN_TEMPLATE, "log")
        if not all(is_unicode(message.content) for message in said):
            return RejectedRecord(NOT_TEXT, "log")
        asked = [
            message
            for place, message in enumerate(said)
            if message.role == "user" or _is_leading_system(message, place)
        ]
        return _build_record("log", asked, sum(message.role == "assistant" for message in said))
    for name in REQUEST_KEYS:
        inner = value.get(name)
        if isinstance(inner, str):
            try:
                inner = json.loads(inner)
            except (ValueError, RecursionError):
                continue
        if isinstance(inner, dict) and not any(deeper in inner for deeper in REQUEST_KEYS):
            shaped = _read(inner)
            return replace(shaped, shape="log") if shaped.shape is not None else shaped
    return RejectedRecord(UNKNOWN_SHAPE, None)


def _is_leading_system(message: Message, index: int) -> bool:
    return message.role == "system" and index == 0


def _from_sharegpt(items: Any) -> ParsedRecord | RejectedRecord:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if items and "role" in items[0]:  # the same key, OpenAI's messages
        return _from_messages(items, "conversations")
    roles = [SHAREGPT_ROLES.get(str(item.get("from"))) for item in items]
    named = [{"role": role, "content": item.get("value")} for role, item in zip(roles, items, strict=True)]
    return _from_messages(named, "conversations")


def _from_texts(shape: str, texts: Any) -> ParsedRecord | RejectedRecord:
    if not isinstance(texts, list):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        return RejectedRecord(NOT_TEXT, shape)
    return _build_record(shape, [Message("user", text) for text in texts], 0)


def _from_messages(items: Any, shape: str) -> ParsedRecord | RejectedRecord:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    kept: list[Message] = []
    num_answers = 0
    for place, item in enumerate(items):
        role = item.get("role")
        if role == "assistant":
            num_answers += 1
            if item.get("tool_calls") or item.get("function_call"):
                return RejectedRecord(TOOL_TURNS, shape)
        elif role in ("tool", "function"):
            return RejectedRecord(TOOL_TURNS, shape)
        elif role == "user" or (role in ("system", "developer") and place == 0):
            text = _text(item.get("content"))
            if text is None or not is_unicode(text):
                return RejectedRecord(NOT_TEXT, shape)
            kept.append(Message("user" if role == "user" else "system", text))
        elif role not in ("system", "developer"):
            return RejectedRecord(UNKNOWN_SHAPE, None)
    return _build_record(shape, kept, num_answers)


def _text(content: Any) -> str | None:
    """The text of a message; OpenAI's list of parts is joined. None where a part is no text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return None


def _build_record(shape: str, messages: list[Message], num_answers: int) -> ParsedRecord | RejectedRecord:
    """A record without a user turn asks nothing, and one with an empty turn asks nothing there."""
    users = [message for message in messages if message.role == "user"]
    if not users or not all(message.content.strip() for message in users):
        return RejectedRecord(NO_USER_TURN, shape)
    return ParsedRecord(shape, tuple(messages), num_answers)
