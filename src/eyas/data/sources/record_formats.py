"""Parses the formats of prompt records. `parse_record` returns the user turns, and the system message if requested.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}, ...]}    OpenAI; also "conversation"
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}, ...]}      ShareGPT
    {"turns": ["first user message", "second user message"]}                               MT-bench
    {"prompt": "..."}   {"question": "..."}                                                HumanEval, GSM8K
    {"instruction": "...", "input": "..."}                                                 Alpaca; or "context": Dolly
    {"text": "..."}   "..."                                                                plain text
    {"body": {"messages": ...}}   {"request": {...}}                                       request logs, OpenAI batches
    {"rendered": "<|im_start|>user ..."}                                                   logs of vLLM and SGLang

The first of these keys that a record has determines its format (in code: its shape). All other keys are ignored.
Answers in the records are dropped, because the target generates its own.

`parse_log_line` reads the lines of the servers' request logs, which hold the prompt as the chat template rendered it:

    vLLM      ... Received request cmpl-1: prompt: '<text>', params: SamplingParams(...), ...
              ... Request chatcmpl-1 details: prompt: '<text>', prompt_token_ids: ...
    SGLang    ... Finish: obj=GenerateReqInput(rid='1', ..., text='<text>', ...), out=...
              {"timestamp": ..., "event": "request.finished", "rid": "1", "obj": {"text": "<text>", ...}, "out": {...}}

Sources: vllm/entrypoints/logger.py; sglang/srt/utils/request_logger.py. SGLang logs a request twice; only the line at
its end holds a chat prompt as text.
"""

import ast
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from eyas.chat.conversation import Message, Role, is_unicode

NO_RECORD: Final = object()
"""The value of a line that contains no record, such as a blank line."""

# Reasons to reject a record, as the ledger names them.
UNKNOWN_SHAPE = "unknown_shape"
NO_USER_TURN = "no_user_turn"
NOT_TEXT = "not_text"  # images, audio, half a surrogate pair
TOOL_TURNS = "tool_turns"  # the next user turn depends on a tool output that eyas does not have
UNKNOWN_TEMPLATE = "unknown_template"  # a logged prompt with markers of an unknown chat template
CUT_BY_LOG = "cut_by_log"

# Roles by their names in ShareGPT and in chat templates.
ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "model", "gpt", "chatgpt", "bard", "bing"), "assistant"),
}
SHAREGPT_TOOLS = ("tool", "function_call", "function_response", "observation")
REQUEST_KEYS = ("body", "request", "payload")
_CONVERSATION_KEYS = ("messages", "conversation", "conversations", "turns", "prompt", "question", "instruction", "text")
READ_KEYS = frozenset((*_CONVERSATION_KEYS, "rendered", "input", "context", "truncated", *REQUEST_KEYS))
"""All keys of a record that are read."""


@dataclass(frozen=True)
class ParsedRecord:
    """The messages of a record that eyas uses.

    Attributes:
        shape: The name of the record's format, such as "messages".
        messages: The user turns, after the system message if it is kept.
        num_answers: The number of assistant turns, which are dropped.
    """

    shape: str
    messages: tuple[Message, ...]
    num_answers: int


@dataclass(frozen=True)
class RejectedRecord:
    """A record without a usable prompt.

    Attributes:
        reason: The reason, as the ledger names it, such as NO_USER_TURN.
        shape: The name of the record's format; None if it is unknown.
    """

    reason: str
    shape: str | None


def parse_record(value: Any, keep_system: bool = False) -> ParsedRecord | RejectedRecord:
    """Returns the user turns of a record, or the reason why it has no usable prompt.

    Args:
        value: A JSON value: an object of one of the formats above, or a string.
        keep_system: Returns a leading system message, too.
    """
    parsed = _parse(value)
    if isinstance(parsed, RejectedRecord) or keep_system:
        return parsed
    return replace(parsed, messages=tuple(message for message in parsed.messages if message.role == "user"))


def _parse(value: Any) -> ParsedRecord | RejectedRecord:
    if isinstance(value, str):
        return _from_texts("text", [value])
    if not isinstance(value, dict):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    shape = next((key for key in _CONVERSATION_KEYS if key in value), None)
    if shape is None:
        return _from_log(value)
    content = value[shape]
    if shape == "conversations":
        return _from_sharegpt(content)
    # Preference datasets have a list of messages in "prompt".
    if shape in ("messages", "conversation") or (shape == "prompt" and isinstance(content, list)):
        return _from_messages(shape, content)
    if shape == "instruction":
        parts = [content, value.get("input") or value.get("context") or ""]
        if not all(isinstance(part, str) for part in parts):
            return RejectedRecord(NOT_TEXT, shape)
        content = "\n\n".join(part for part in parts if part)
    return _from_texts(shape, content if shape == "turns" else [content])


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


def _from_sharegpt(items: Any) -> ParsedRecord | RejectedRecord:
    if not _is_list_of_objects(items):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if items and "role" in items[0]:  # the same key with OpenAI's messages
        return _from_messages("conversations", items)
    named = []
    for item in items:
        name = str(item.get("from"))
        named.append({"role": "tool" if name in SHAREGPT_TOOLS else ROLES.get(name), "content": item.get("value")})
    return _from_messages("conversations", named)


def _from_texts(shape: str, texts: Any) -> ParsedRecord | RejectedRecord:
    if not isinstance(texts, list):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        return RejectedRecord(NOT_TEXT, shape)
    return _build_record(shape, [Message("user", text) for text in texts], 0)


def _from_messages(shape: str, items: Any) -> ParsedRecord | RejectedRecord:
    if not _is_list_of_objects(items):
        return RejectedRecord(UNKNOWN_SHAPE, None)
    messages: list[Message] = []
    num_answers = 0
    for index, item in enumerate(items):
        role = item.get("role")
        if role == "assistant":
            num_answers += 1
            if item.get("tool_calls") or item.get("function_call"):
                return RejectedRecord(TOOL_TURNS, shape)
        elif role in ("tool", "function"):
            return RejectedRecord(TOOL_TURNS, shape)
        elif role == "user" or (role in ("system", "developer") and index == 0):
            text = _join_text(item.get("content"))
            if text is None or not is_unicode(text):
                return RejectedRecord(NOT_TEXT, shape)
            messages.append(Message("user" if role == "user" else "system", text))
        elif role not in ("system", "developer"):
            return RejectedRecord(UNKNOWN_SHAPE, None)
    return _build_record(shape, messages, num_answers)


def _is_list_of_objects(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, dict) for item in items)


def _join_text(content: Any) -> str | None:
    """Returns the text of a message, which is a string or OpenAI's list of parts. Returns None if a part is no text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    return None


def _build_record(shape: str, messages: list[Message], num_answers: int) -> ParsedRecord | RejectedRecord:
    """Returns the parsed record, or a rejection if it has no user turn or an empty one."""
    users = [message for message in messages if message.role == "user"]
    if not users or not all(message.content.strip() for message in users):
        return RejectedRecord(NO_USER_TURN, shape)
    return ParsedRecord(shape, tuple(messages), num_answers)


# --- request logs ----------------------------------------------------------------------------------------------------

_LITERAL = r"('(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
_VLLM = re.compile(rf"(?:Received request \S{{1,200}}:|Request \S{{1,200}} details:) prompt: {_LITERAL}")
_SGLANG = re.compile(rf"Finish: obj=GenerateReqInput\(.{{0,2000}}?\btext={_LITERAL}", re.DOTALL)
_SGLANG_EVENT = "request.finished"
_SGLANG_CHARS = 2048  # SGLang at --log-requests-level 2 keeps so many characters: both ends, "..." between them


def parse_log_line(line: bytes) -> Any:
    """Converts a log line to a value for `parse_record`.

    line                                              result
    a request in the log of vLLM or SGLang            {"rendered": text}
    such a request with a prompt that the log cut     {"truncated": True}
    another JSON object                               the object
    any other line                                    NO_RECORD
    """
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return NO_RECORD
        if not isinstance(value, dict) or "event" not in value:
            return value
        fields = value.get("obj") if value["event"] == _SGLANG_EVENT else None
        return _to_value(fields.get("text")) if isinstance(fields, dict) else NO_RECORD
    match = _VLLM.search(text) or _SGLANG.search(text)
    if match is None:
        return NO_RECORD
    try:
        return _to_value(ast.literal_eval(match[1]))  # both log the repr of the text
    except (ValueError, SyntaxError, MemoryError):
        return NO_RECORD


def _to_value(text: object) -> Any:
    if not isinstance(text, str):
        return NO_RECORD
    half = _SGLANG_CHARS // 2
    if len(text) == _SGLANG_CHARS + 3 and text[half : half + 3] == "...":
        return {"truncated": True}
    return {"rendered": text}


# --- chat templates --------------------------------------------------------------------------------------------------

# The patterns of the beginning of a turn, whose first group is the role, and of its end.
TEMPLATE_FAMILIES = (
    # ChatML: Qwen, Yi, SmolLM and many others.
    (r"<\|im_start\|>([a-z]{1,20})\n", r"<\|im_end\|>\n?"),
    # Llama 3 and Llama 4.
    (r"<\|start_header_id\|>([a-z]{1,20})<\|end_header_id\|>\n\n", r"<\|eot_id\|>|<\|eom_id\|>"),
    (r"<\|header_start\|>([a-z]{1,20})<\|header_end\|>\n\n", r"<\|eot\|>|<\|eom\|>"),
    # Gemma.
    (r"<start_of_turn>([a-z]{1,20})\n", r"<end_of_turn>\n?"),
    # gpt-oss (harmony).
    (r"<\|start\|>([a-z]{1,20})(?:<\|channel\|>[a-z ]{1,40})?<\|message\|>", r"<\|end\|>|<\|return\|>|<\|call\|>"),
    # Phi-3 and Phi-4-mini.
    (r"<\|(system|user|assistant|tool)\|>\n?", r"<\|end\|>\n?"),
)
_MISTRAL = re.compile(r"\[INST\]\s?(.*?)\s?\[/INST\]", re.DOTALL)
_ANY_MARKER = re.compile(r"<\|[a-zA-Z_]{1,40}\|>|<｜[^｜]{1,40}｜>|<start_of_turn>|\[INST\]")


def parse_rendered_prompt(text: str) -> list[Message] | None:
    """Splits a prompt that a chat template rendered into its messages.

    Text outside of turns is dropped, and so is an empty assistant turn at the end. Text without markers is one user
    turn, because it is a prompt of /v1/completions.

    Returns:
        The messages; None if the template is unknown, or if the prompt has a turn of a tool.
    """
    for head, end in TEMPLATE_FAMILIES:
        heads = list(re.finditer(head, text))
        if heads:
            return _split_turns(text, heads, re.compile(end))
    found = _MISTRAL.findall(text)
    if found:
        return [Message("user", turn) for turn in found]
    return None if _ANY_MARKER.search(text) else [Message("user", text)]


def _split_turns(text: str, heads: list[re.Match[str]], end_pattern: re.Pattern[str]) -> list[Message] | None:
    messages = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        role = ROLES.get(head[1])
        if role is None:
            return None
        limit = len(text) if following is None else following.start()
        end = end_pattern.search(text, head.end(), limit)
        content = text[head.end() : limit if end is None else end.start()]
        if role == "assistant" and following is None and not content.strip():
            continue
        messages.append(Message(role, content))
    return messages
