"""Request logs of servers: which lines hold a prompt, and the prompt in them.

    vLLM      ... Received request cmpl-1: prompt: '<text>', params: SamplingParams(...), ...
              ... Request chatcmpl-1 details: prompt: '<text>', prompt_token_ids: ...
    SGLang    ... Finish: obj=GenerateReqInput(rid='1', ..., text='<text>', ...), out=...
              {"timestamp": ..., "event": "request.finished", "rid": "1", "obj": {"text": "<text>", ...}, "out": {...}}

Sources: vllm/entrypoints/logger.py; sglang/srt/utils/request_logger.py. Both log the prompt as the
chat template rendered it: `rendered.py` takes the users' turns out of it. SGLang logs a request twice; the line of its
end is taken, because only there a chat prompt stands as text.
"""

import ast
import json
import re
from typing import Any, Final

NO_REQUEST: Final = object()
"""What a line without a prompt reads as."""

_LITERAL = r"('(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
_VLLM = re.compile(rf"(?:Received request \S{{1,200}}:|Request \S{{1,200}} details:) prompt: {_LITERAL}")
_SGLANG = re.compile(rf"Finish: obj=GenerateReqInput\(.{{0,2000}}?\btext={_LITERAL}", re.DOTALL)
_SGLANG_EVENT = "request.finished"
_CUT = 2048  # SGLang at --log-requests-level 2 keeps so many characters: both ends, "..." between them


def parse_log_line(line: bytes) -> Any:
    """{"rendered": text} for a request; a JSON object that is no event of SGLang's as it is; else NO_REQUEST.

    {"truncated": true} for a prompt that the server cut: it has a shape of its own, so that the ledger counts it.
    """
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return NO_REQUEST
        return _parse_sglang_event(value) if isinstance(value, dict) and "event" in value else value
    for pattern in (_VLLM, _SGLANG):
        found = pattern.search(text)
        if found is not None:
            return _to_value(_eval_literal(found[1]))
    return NO_REQUEST


def _parse_sglang_event(value: dict[str, Any]) -> Any:
    fields = value.get("obj")
    if value["event"] != _SGLANG_EVENT or not isinstance(fields, dict):
        return NO_REQUEST
    return _to_value(fields.get("text"))


def _to_value(text: object) -> Any:
    if not isinstance(text, str):
        return NO_REQUEST
    half = _CUT // 2
    if len(text) == _CUT + 3 and text[half : half + 3] == "...":
        return {"truncated": True}
    return {"rendered": text}


def _eval_literal(literal: str) -> str | None:
    """The text that Python wrote with repr."""
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError, MemoryError):
        return None
    return value if isinstance(value, str) else None
