"""Parses the request logs of servers, and the prompts in them, which a chat template rendered.

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
import tomllib
from pathlib import Path
from typing import Any, Final

from eyas.chat.conversation import Message, Role

NO_RECORD: Final = object()
"""The value of a line that contains no record, such as a blank line."""

# Roles by their names in datasets and in chat templates.
ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "customer"), "user"),
    **dict.fromkeys(("assistant", "model", "gpt", "chatgpt", "bard", "bing", "bot", "ai", "agent"), "assistant"),
}

_LITERAL = r"('(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
_VLLM = re.compile(rf"(?:Received request \S{{1,200}}:|Request \S{{1,200}} details:) prompt: {_LITERAL}")
_SGLANG = re.compile(rf"Finish: obj=GenerateReqInput\(.{{0,2000}}?\btext={_LITERAL}", re.DOTALL)
_SGLANG_EVENT = "request.finished"
_SGLANG_CHARS = 2048  # SGLang at --log-requests-level 2 keeps so many characters: both ends, "..." between them


def parse_log_line(line: str) -> Any:
    """Converts a log line to a value for `parse_record`.

    line                                              result
    a request in the log of vLLM or SGLang            {"rendered": text}
    such a request with a prompt that the log cut     {"truncated": True}
    another JSON object                               the object
    any other line                                    NO_RECORD
    """
    text = line.encode("utf-8", "replace").decode().strip()
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

TEMPLATE_FAMILIES = tomllib.loads(Path(__file__).with_name("chat_templates.toml").read_text(encoding="utf-8"))
_MISTRAL = re.compile(r"\[INST\]\s?(.*?)\s?\[/INST\]", re.DOTALL)
_ANY_MARKER = re.compile(r"<\|[a-zA-Z_]{1,40}\|>|<｜[^｜]{1,40}｜>|<start_of_turn>|\[INST\]")


def parse_rendered_prompt(text: str) -> list[Message] | None:
    """Splits a prompt that a chat template rendered into its messages.

    Text outside of turns is dropped, and so is an empty assistant turn at the end. Text without markers is one user
    turn, because it is a prompt of /v1/completions.

    Returns:
        The messages; None if the template is unknown, or if the prompt has a turn of a tool.
    """
    for family in TEMPLATE_FAMILIES.values():
        if heads := list(re.finditer(family["turn"], text)):
            return _split_turns(text, heads, re.compile(family["end"]))
    if found := _MISTRAL.findall(text):
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
