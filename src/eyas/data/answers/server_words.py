"""What may be shown of a server's error message: servers like to repeat what they were sent."""

import json
import re
from collections.abc import Iterable
from typing import Any

LONGEST = 300  # characters
BLANK = "..."
LEAST_SQUEEZED = 4  # characters of a word that is looked for with all separators taken out of the prompt
LEAST_PART = 3  # characters of a word of the prompt that is looked for inside a longer one of the message
LONGEST_WORD = 40  # nothing longer is a word
WORD = re.compile(r"[^\W_]+")
UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")
ESCAPE = re.compile(r"\\.|%[0-9a-fA-F]{2}")
_HARMLESS = """
a above accepted allowed an and api are argument as at authentication available backend bad be been between body but by
can cannot character characters chat choose completion completions content context correct could default do does error
exceed exceeded exceeds expected expects extra failed field for forbidden found from got greater had has have however in
incorrect input integer internal invalid is it its json key large least length less limit long longer lower many max
maximum message messages min missing model most must no not number of off on one only or output parameter parameters
please positive prompt provide provided quota rate reached reduce refused request requested requests required response
role s server should size smaller string supplied support supported t temperature text than that the there this tier to
token tokens too tool tools total type unauthorized unexpected unknown unrecognized unsupported up usage use user
valid validation value was were when which while with without wrong you your
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Words that error messages are made of and that tell nothing about whoever also wrote them into a prompt."""


def message_of(body: bytes) -> str:
    """The message of an error reply in the shapes of OpenAI, vLLM and FastAPI; "" where there is none."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    for key in ("error", "message", "detail"):
        inner = value.get(key) if isinstance(value, dict) else None
        if isinstance(inner, dict):
            inner = inner.get("message")
        elif isinstance(inner, list):  # FastAPI: the places and kinds of what is wrong, never the input itself
            inner = "; ".join(str(one.get("msg", "")) for one in inner if isinstance(one, dict))
        if isinstance(inner, str) and inner.strip():
            return inner
    return ""


def shown(message: str, secrets: Iterable[str]) -> str:
    """The message in one line, shortened, without any word that also stands in one of the secrets.

    A word counts as standing there also as a part of a longer one, around a shorter one, in other case, escaped, or
    with separators between its characters (a card number's groups). `HARMLESS` words stay, or a long prompt would blank
    the whole message.
    """
    text = "\n".join(secrets).casefold()
    words = WORD.findall(text)
    squeezed, known = "".join(words), {word for word in words if len(word) >= LEAST_PART}

    def stands_there(word: str) -> bool:
        if len(word) > LONGEST_WORD or word in text or (len(word) >= LEAST_SQUEEZED and word in squeezed):
            return True
        ends = range(LEAST_PART, len(word) + 1)
        return any(word[begin:end] in known for end in ends for begin in range(end - LEAST_PART + 1))

    def blanked(match: re.Match[str]) -> str:
        word = match[0].casefold()
        return match[0] if word in HARMLESS or not stands_there(word) else BLANK

    plain = ESCAPE.sub(" ", UNICODE.sub(lambda match: chr(int(match[1], 16)), message))
    line = " ".join(WORD.sub(blanked, plain).split())
    line = "".join(char if char.isprintable() else " " for char in line)
    return line if len(line) <= LONGEST else line[:LONGEST].rsplit(" ", 1)[0] + f" {BLANK}"
