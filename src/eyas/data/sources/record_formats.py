"""Parses the formats of prompt records. `parse_record` returns the user turns, and the system message if requested.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}    OpenAI
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}, ...]}      ShareGPT
    {"dialogue": [{"user": "...", "assistant": "..."}, ...]}   {"data": ["...", "..."]}    pairs, or speakers in turn
    {"turns": ["first user message", "second user message"]}                               MT-bench
    {"prompt": "..."}   {"question": "..."}   {"query": "..."}                             HumanEval, GSM8K, others
    {"instruction": "...", "input": "...", "context": "...", "history": [["...", "..."]]}  Alpaca, Dolly
    {"instruction": "...", "before": "..."}                                                edits of code
    {"text": "..."}   "..."                                                                plain text
    {"body": {"messages": ...}}   {"request": {...}}                                       request logs, OpenAI batches
    {"rendered": "<|im_start|>user ..."}                                                   logs of vLLM and SGLang

The first key of _SHAPES that has a value determines the format (in code: its shape); without one, a request inside the
record; then a key of _LIST_SHAPES or _TEXT_SHAPES. All other keys are ignored. Keys and roles may be in capitals. A
list may be JSON or Python in a string, as cells of a table hold it. The content of a message may be a list of parts:
the text is kept, pictures and other media are counted. Answers are dropped, because the target generates its own. Only
`eyas bench` with several turns keeps them, with tool calls and their results in OpenAI's form.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from eyas.base.json_parser import parse_json
from eyas.chat.conversation import Message, Role, TemplateMessage, ToolCall, is_unicode
from eyas.data.sources.request_logs import ROLES, parse_rendered_prompt

# Reasons to reject a record, as the ledger names them.
UNKNOWN_SHAPE = "unknown_shape"
NO_USER_TURN = "no_user_turn"
NOT_TEXT = "not_text"  # only images or audio, half a surrogate pair
TOOL_TURNS = "tool_turns"  # the next user turn depends on a tool output that eyas does not have
UNKNOWN_TEMPLATE = "unknown_template"  # a logged prompt with markers of an unknown chat template
CUT_BY_LOG = "cut_by_log"
NOT_JSON = "not_json"  # a line that is not JSON, or not text in the encoding of the file
TOO_LARGE = "too_large"  # a line of more than MAX_RECORD_CHARS
WRONG_COLUMNS = "wrong_columns"  # a CSV row with more cells than the header
MISSING_COLUMN = "missing_column"  # nothing at the paths of prompts.columns

SHAPE_REASONS = (UNKNOWN_SHAPE, NOT_TEXT, NO_USER_TURN, MISSING_COLUMN)
"""The reasons for which `prompts.columns` may help."""

TOOL = "tool"
TOOL_ROLES = (TOOL, "function", "function_call", "function_response", "observation", "ipython")
AnyRole = Role | Literal["tool"]
REQUEST_KEYS = ("body", "request", "payload", "row")
_LIST_SHAPES = ("messages", "conversation", "conversations", "dialogue", "dialog", "chat", "items", "data", "chosen")
_TEXT_SHAPES = ("query", "problem", "inputs", "input")
_SHAPES = ("messages", "conversation", "conversations", "turns", "prompt", "question", "instruction", "text")
_LOG_KEYS = ("rendered", "truncated", *REQUEST_KEYS)
_ROLE_KEYS = ("role", "from", "speaker", "sender", "author")
_CONTENT_KEYS = ("content", "value", "text", "message")
_PAIR_KEYS = ("user", "human", "question", "prompt", "instruction", "query", "input")
_ANSWER_KEYS = ("assistant", "bot", "gpt", "ai", "answer", "response", "output")
_TEXT_PARTS = ("text", "input_text", "output_text")
_MEDIA_PARTS = ("image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio", "file")
_OTHER_KEYS = (*_ANSWER_KEYS[:4], *_ROLE_KEYS[:2], "content", "value", "context", "before", "history")
READ_KEYS = frozenset((*_SHAPES, *_LIST_SHAPES, *_TEXT_SHAPES, *_LOG_KEYS, *_PAIR_KEYS, *_OTHER_KEYS))
"""All keys of a record that are read."""


@dataclass(frozen=True)
class ParsedRecord:
    """The messages of a record that eyas uses.

    Attributes:
        shape: The name of the record's format, such as "messages".
        messages: The user turns, after the system message if it is kept; with answers, all messages.
        num_answers: The number of assistant turns.
        num_pictures: The number of pictures and other media in the user turns, which are dropped.
    """

    shape: str
    messages: tuple[Message, ...]
    num_answers: int
    num_pictures: int = 0


@dataclass(frozen=True)
class RejectedRecord:
    """A record without a usable prompt.

    Attributes:
        reason: The reason, as the ledger names it, such as NO_USER_TURN.
        shape: The name of the record's format; None if it is unknown.
        form: What was found instead, as `describe_form` writes it. Empty if the record itself shows it.
    """

    reason: str
    shape: str | None
    form: str = ""


def parse_record(value: Any, keep_system: bool = False, keep_answers: bool = False) -> ParsedRecord | RejectedRecord:
    """Returns the user turns of a record, or the reason why it has no usable prompt.

    Args:
        value: A JSON value: an object of one of the formats above, a string, or a list of messages or user turns. A
            RejectedRecord is returned unchanged.
        keep_system: Returns a leading system message, too.
        keep_answers: Returns all messages: also those of the assistant and the results of tools.
    """
    parsed = value if isinstance(value, RejectedRecord) else _parse(value)
    if isinstance(parsed, RejectedRecord) or keep_answers:
        return parsed
    if any(message.role == TOOL or message.tool_calls for message in parsed.messages):
        return RejectedRecord(TOOL_TURNS, parsed.shape)
    kept = ("system", "user") if keep_system else ("user",)
    return replace(parsed, messages=tuple(message for message in parsed.messages if message.role in kept))


def is_message(value: Any) -> bool:
    """Returns True for an object with the role of a speaker, which is a part of a conversation."""
    names = [value.get(key) for key in _ROLE_KEYS] if isinstance(value, dict) else []
    return any(str(name).strip().lower() in (*ROLES, *TOOL_ROLES) for name in names)


def is_known_record(value: Any) -> bool:
    """Returns True for an object with a key that may determine its format."""
    return isinstance(value, dict) and any(str(key).strip().lower() in READ_KEYS for key in value)


def describe_form(value: Any) -> str:
    """Returns the form of a record for a message, without its content: "keys id, frage"."""
    return f"keys {show_names(value)}" if isinstance(value, dict) else f"type {type(value).__name__}"


def show_names(names: Iterable[str]) -> str:
    """Returns the first names of columns or keys. Hides a long one, which may be text of a table without a header."""
    shown = [name if len(name) <= 24 and name.count(" ") < 3 else "(a text)" for name in map(str, names)]
    return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")


def _parse(value: Any) -> ParsedRecord | RejectedRecord:
    if isinstance(value, str):
        return _from_texts("text", [value])
    if isinstance(value, list) and value:
        return _from_list("messages" if is_message(value[0]) else "turns", value)
    if not isinstance(value, dict):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if is_message(value) and not any(key in value for key in _SHAPES[:-1]):  # its "text" may be an answer
        return _from_list("messages", [value])
    shape = _find_key(value, _SHAPES)
    if shape is None:
        parsed = _from_log(value)
        shape = _find_other_shape(value) if parsed == RejectedRecord(UNKNOWN_SHAPE, None) else None
        if shape is None:
            lowered = {str(key).strip().lower(): item for key, item in value.items()}
            return parsed if parsed.shape or lowered.keys() == value.keys() else _parse(lowered)
    if shape == "instruction":
        return _from_instruction(value)
    if shape in _LIST_SHAPES or shape == "turns" or isinstance(value[shape], list):
        return _from_list(shape, value[shape])
    return _from_texts(shape, [value[shape]])


def _find_key(value: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Returns the first of the keys that has a value; if none has one, the first that is there."""
    present = [key for key in keys if key in value]
    return next((key for key in present if value[key] not in (None, "", [])), present[0] if present else None)


def _find_other_shape(value: dict[str, Any]) -> str | None:
    """Returns the key of _LIST_SHAPES with a list, else of _TEXT_SHAPES, that determines the format of a record."""
    lists = [key for key in _LIST_SHAPES if isinstance(_read_cell(value.get(key)), list)]
    is_pair = any(key in value for key in _ANSWER_KEYS[:4])  # otherwise "user" may be the name of one
    return _find_key(value, [*lists, *_TEXT_SHAPES, "history", *(_PAIR_KEYS[:2] if is_pair else ())])


def _from_log(value: dict[str, Any]) -> ParsedRecord | RejectedRecord:
    """Parses a record of a request log. The request in it is an object, or JSON in a string."""
    if value.get("truncated") is True:
        return RejectedRecord(CUT_BY_LOG, "log")
    if isinstance(value.get("rendered"), str):
        messages = parse_rendered_prompt(value["rendered"])
        if messages is None:
            return RejectedRecord(UNKNOWN_TEMPLATE, "log")
        return _from_messages("log", [message.to_json() for message in messages])
    for name in REQUEST_KEYS:
        inner = value.get(name)
        if isinstance(inner, str):
            try:
                inner = json.loads(inner)
            except (ValueError, RecursionError):
                continue
        if isinstance(inner, dict) and not any(deeper in inner for deeper in REQUEST_KEYS):
            parsed = _parse(inner)
            return replace(parsed, shape="log") if parsed.shape is not None else parsed
    return RejectedRecord(UNKNOWN_SHAPE, None)


def _from_instruction(value: dict[str, Any]) -> ParsedRecord | RejectedRecord:
    keys = "instruction", "input", "context", "before"
    parts = [part for key in keys if (part := value.get(key)) not in (None, "")]
    if not all(isinstance(part, str) for part in parts):
        return RejectedRecord(NOT_TEXT, "instruction")
    history = _read_cell(value.get("history"))
    turns = [*history, ["\n\n".join(parts)]] if isinstance(history, list) else [["\n\n".join(parts)]]
    return _from_list("instruction", turns)


def _from_list(shape: str, content: Any) -> ParsedRecord | RejectedRecord:
    """Parses a list of messages, of pairs, of the texts of speakers in turn, of user turns, or of parts of a text."""
    items: Any = _read_cell(content)
    if not isinstance(items, list):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if items and all(isinstance(item, list) and item for item in items):
        items = [dict(zip(("user", "assistant"), item, strict=False)) for item in items]
    elif shape in _LIST_SHAPES and all(isinstance(item, str) for item in items):
        items = [{"role": ("user", "assistant")[index % 2], "content": item} for index, item in enumerate(items)]
    has_parts = any(isinstance(item, dict) and "type" in item and not is_message(item) for item in items)
    if items and all(isinstance(item, dict) for item in items) and not has_parts:
        return _from_messages(shape, items)
    return _from_texts(shape, [items] if has_parts else items)


def _from_texts(shape: str, texts: Sequence[Any]) -> ParsedRecord | RejectedRecord:
    return _from_messages(shape, [{"role": "user", "content": text} for text in texts])


def _from_messages(shape: str, items: Sequence[dict[str, Any]]) -> ParsedRecord | RejectedRecord:
    messages: list[Message] = []
    num_pictures = 0
    for index, (role, content, item) in enumerate(_read_messages(items)):
        if role is None:
            return RejectedRecord(UNKNOWN_SHAPE, None)
        text, count = _read_content(content)
        if role == "user" or (role == "system" and index == 0):
            if text is None or not is_unicode(text):
                return RejectedRecord(NOT_TEXT, shape)
            messages.append(Message(role, text))
            num_pictures += count
        elif role != "system":
            try:
                messages.append(_read_other_message(role, text or "", item))
            except ValueError:
                return RejectedRecord(TOOL_TURNS, shape)
    users = [message for message in messages if message.role == "user"]
    if not users or not all(message.content.strip() for message in users):
        return RejectedRecord(NO_USER_TURN, shape)
    return ParsedRecord(shape, tuple(messages), sum(m.role == "assistant" for m in messages), num_pictures)


def _read_other_message(role: AnyRole, text: str, item: dict[str, Any]) -> Message:
    """Returns an answer or the result of a tool. Raises ValueError for calls and results not in OpenAI's form."""
    if role == "assistant":
        if item.get("function_call"):
            raise ValueError("the form of OpenAI's API before tools")
        calls = item.get("tool_calls")
        tool_calls = parse_json(tuple[ToolCall, ...], json.dumps(calls)) if calls else ()
        return Message(role, text, tool_calls=tool_calls)
    if item.get("role") != TOOL:
        raise ValueError("a role of another form")
    return TemplateMessage(cast(Role, role), text, extra_fields={"tool_call_id": str(item.get("tool_call_id", ""))})


def _read_messages(items: Sequence[dict[str, Any]]) -> Iterator[tuple[AnyRole | None, Any, dict[str, Any]]]:
    """Yields role, content and the item of each message. A pair of a prompt and its answer is two messages."""
    for item in items:
        if name := _find_key(item, _ROLE_KEYS):
            role = str(item[name]).strip().lower()
            content = item.get(_find_key(item, _CONTENT_KEYS) or "content")
            yield TOOL if role in TOOL_ROLES else ROLES.get(role), content, item
        else:
            key = _find_key(item, _PAIR_KEYS)
            yield "user" if key else None, item.get(key or ""), item
            if answer := _find_key(item, _ANSWER_KEYS):
                yield "assistant", item[answer], {}


def _read_content(content: Any) -> tuple[str | None, int]:
    """Returns the text of a message and the number of its pictures; no text if a part is of an unknown kind."""
    texts, num_pictures = [], 0
    for part in content if isinstance(content, list) else [content]:
        kind = (part.get("type") or "text") if isinstance(part, dict) else "text"
        text = part.get(_find_key(part, _CONTENT_KEYS) or "text") if isinstance(part, dict) else part
        if kind in _MEDIA_PARTS:
            num_pictures += 1
        elif kind in _TEXT_PARTS and isinstance(text, str):
            texts.append(text)
        else:
            return None, 0
    return "\n".join(texts) if texts else None, num_pictures


def _read_cell(content: Any) -> Any:
    """Returns the list that a string holds as JSON or Python; any other value unchanged."""
    if isinstance(content, str) and content.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(content)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return content
