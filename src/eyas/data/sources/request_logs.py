"""Reads request logs of servers: the prompt in a log line, and the user turns in a prompt after the chat template.

    vLLM      ... Received request cmpl-1: prompt: '<text>', params: SamplingParams(...), ...
              ... Request chatcmpl-1 details: prompt: '<text>', prompt_token_ids: ...
    SGLang    ... Finish: obj=GenerateReqInput(rid='1', ..., text='<text>', ...), out=...
              {"timestamp": ..., "event": "request.finished", "rid": "1", "obj": {"text": "<text>", ...}, "out": {...}}

Sources: vllm/entrypoints/logger.py; sglang/srt/utils/request_logger.py. Both log the prompt as the chat template
rendered it. SGLang logs a request twice; only the line at its end holds a chat prompt as text.
"""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from eyas.chat.conversation import Message, Role

NO_RECORD: Final = object()
"""The value of a line without a record."""

_LITERAL = r"('(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
_VLLM = re.compile(rf"(?:Received request \S{{1,200}}:|Request \S{{1,200}} details:) prompt: {_LITERAL}")
_SGLANG = re.compile(rf"Finish: obj=GenerateReqInput\(.{{0,2000}}?\btext={_LITERAL}", re.DOTALL)
_SGLANG_EVENT = "request.finished"
_SGLANG_CHARS = 2048  # SGLang at --log-requests-level 2 keeps so many characters: both ends, "..." between them

# --- log lines -------------------------------------------------------------------------------------------------------


def parse_log_line(line: bytes) -> Any:
    """Returns the value of a log line, for `record_formats.parse_record`.

    That is {"rendered": text} for a logged request, {"truncated": true} for a prompt that the server cut, a JSON object
    as it is unless it is an event of SGLang, and NO_RECORD for any other line.
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

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
}


@dataclass(frozen=True)
class TurnMarkers:
    """The markers of a turn in one family of chat templates. head: its first group is the role."""

    head: re.Pattern[str]
    end: re.Pattern[str]


TEMPLATE_FAMILIES = (
    # ChatML: Qwen, Yi, SmolLM and many others.
    TurnMarkers(re.compile(r"<\|im_start\|>([a-z]{1,20})\n"), re.compile(r"<\|im_end\|>\n?")),
    # Llama 3 and Llama 4.
    TurnMarkers(
        re.compile(r"<\|start_header_id\|>([a-z]{1,20})<\|end_header_id\|>\n\n"),
        re.compile(r"<\|eot_id\|>|<\|eom_id\|>"),
    ),
    TurnMarkers(re.compile(r"<\|header_start\|>([a-z]{1,20})<\|header_end\|>\n\n"), re.compile(r"<\|eot\|>|<\|eom\|>")),
    # Gemma.
    TurnMarkers(re.compile(r"<start_of_turn>([a-z]{1,20})\n"), re.compile(r"<end_of_turn>\n?")),
    # gpt-oss (harmony).
    TurnMarkers(
        re.compile(r"<\|start\|>([a-z]{1,20})(?:<\|channel\|>[a-z ]{1,40})?<\|message\|>"),
        re.compile(r"<\|end\|>|<\|return\|>|<\|call\|>"),
    ),
    # Phi-3 and Phi-4-mini.
    TurnMarkers(re.compile(r"<\|(system|user|assistant|tool)\|>\n?"), re.compile(r"<\|end\|>\n?")),
)
_MISTRAL = re.compile(r"\[INST\]\s?(.*?)\s?\[/INST\]", re.DOTALL)
_ANY_MARKER = re.compile(r"<\|[a-zA-Z_]{1,40}\|>|<｜[^｜]{1,40}｜>|<start_of_turn>|\[INST\]")


def parse_rendered_prompt(text: str) -> list[Message] | None:
    """Splits a prompt after the chat template into its messages.

    Text outside of turns is dropped, and so is the last, open turn of the assistant. Text without any marker is one
    user turn: a prompt of /v1/completions.

    Returns:
        The messages, or None for markers of an unknown template and for a turn of a tool.
    """
    for markers in TEMPLATE_FAMILIES:
        heads = list(markers.head.finditer(text))
        if heads:
            return _split_turns(text, heads, markers)
    found = _MISTRAL.findall(text)
    if found:
        return [Message("user", turn) for turn in found]
    return None if _ANY_MARKER.search(text) else [Message("user", text)]


def _split_turns(text: str, heads: list["re.Match[str]"], markers: TurnMarkers) -> list[Message] | None:
    messages = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        role = ROLES.get(head[1])
        if role is None:
            return None
        limit = len(text) if following is None else following.start()
        end = markers.end.search(text, head.end(), limit)
        content = text[head.end() : limit if end is None else end.start()]
        if role == "assistant" and following is None and not content.strip():
            continue
        messages.append(Message(role, content))
    return messages
