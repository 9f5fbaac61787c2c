"""The record shapes that prompts come in. Only what the user said is kept, and a system message that comes first.

    {"messages": [{"role": "system"}, {"role": "user", "content": "..."}, {"role": "assistant"}, ...]}     OpenAI
    {"turns": ["first user message", "second user message"]}                                             MT-bench
    {"prompt": "..."}                                                                                    HumanEval
    {"question": "..."}                                                                                  GSM8K

The first of these keys that a record has names its shape; every other key is left behind. Answers of the source are
thrown away: the target writes its own.
"""

from dataclasses import dataclass
from typing import Any

from eyas.chat.conversation import Message, is_unicode

# Reasons to drop a record, as the ledger names them.
UNKNOWN_SHAPE = "unknown_shape"
NO_USER_TURN = "no_user_turn"
NOT_TEXT = "not_text"  # images, audio, half a surrogate pair
TOOL_TURNS = "tool_turns"  # what the user says next rests on an output that we do not have


@dataclass(frozen=True)
class Shaped:
    """The part of a record that is kept."""

    shape: str
    messages: tuple[Message, ...]  # system?, user, user, ...
    num_answers: int  # assistant turns thrown away


@dataclass(frozen=True)
class Dropped:
    """Why a record is not kept, and the shape it had, where it had one."""

    reason: str
    shape: str | None


def read_shape(value: Any) -> Shaped | Dropped:
    """What is kept of one JSON value, or why nothing is."""
    if not isinstance(value, dict):
        return Dropped(UNKNOWN_SHAPE, None)
    if "messages" in value:
        return _from_messages(value["messages"])
    if "turns" in value:
        return _from_texts("turns", value["turns"])
    for shape in ("prompt", "question"):
        if shape in value:
            return _from_texts(shape, [value[shape]])
    return Dropped(UNKNOWN_SHAPE, None)


def _from_texts(shape: str, texts: Any) -> Shaped | Dropped:
    if not isinstance(texts, list):
        return Dropped(UNKNOWN_SHAPE, None)
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        return Dropped(NOT_TEXT, shape)
    return _kept(shape, [Message("user", text) for text in texts], 0)


def _from_messages(items: Any) -> Shaped | Dropped:
    shape = "messages"
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return Dropped(UNKNOWN_SHAPE, None)
    kept: list[Message] = []
    num_answers = 0
    for place, item in enumerate(items):
        role = item.get("role")
        if role == "assistant":
            num_answers += 1
            if item.get("tool_calls") or item.get("function_call"):
                return Dropped(TOOL_TURNS, shape)
        elif role in ("tool", "function"):
            return Dropped(TOOL_TURNS, shape)
        elif role == "user" or (role in ("system", "developer") and place == 0):
            text = _text(item.get("content"))
            if text is None or not is_unicode(text):
                return Dropped(NOT_TEXT, shape)
            kept.append(Message("user" if role == "user" else "system", text))
        elif role not in ("system", "developer"):
            return Dropped(UNKNOWN_SHAPE, None)
    return _kept(shape, kept, num_answers)


def _text(content: Any) -> str | None:
    """The text of a message; OpenAI's list of parts is joined. None where a part is no text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return None


def _kept(shape: str, messages: list[Message], num_answers: int) -> Shaped | Dropped:
    """A record without a user turn asks nothing, and one with an empty turn asks nothing there."""
    users = [message for message in messages if message.role == "user"]
    if not users or not all(message.content.strip() for message in users):
        return Dropped(NO_USER_TURN, shape)
    return Shaped(shape, tuple(messages), num_answers)
