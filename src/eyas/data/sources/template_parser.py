"""A prompt as a server's log shows it, after the chat template: back to the turns that the users wrote.

Each family marks where a turn of a role begins and ends. Where none of the marks stands in the text it is plain: a
prompt of /v1/completions. Text with marks of a family that is not known here is not guessed at.
"""

import re
from dataclasses import dataclass

from eyas.chat.conversation import Message, Role

ROLES: dict[str, Role | None] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": None,
    "ipython": None,
    "function": None,
}


@dataclass(frozen=True)
class TurnMarkers:
    """How a family writes a turn: head, with the role in its first group, and what ends the turn."""

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
_MARK = re.compile(r"<\|[a-zA-Z_]{1,40}\|>|<｜[^｜]{1,40}｜>|<start_of_turn>|\[INST\]")


def parse_rendered_prompt(text: str) -> list[Message] | None:
    """The messages of a rendered prompt; None where it has marks that are not known, or a tool's turn.

    What stands outside turns, such as the mark that begins a text, is left behind. The last, open turn of the
    assistant is empty and left behind, too.
    """
    for marks in TEMPLATE_FAMILIES:
        heads = list(marks.head.finditer(text))
        if heads:
            return _split_turns(text, heads, marks)
    found = _MISTRAL.findall(text)
    if found:
        return [Message("user", one) for one in found]
    return None if _MARK.search(text) else [Message("user", text)]


def _split_turns(text: str, heads: list["re.Match[str]"], marks: TurnMarkers) -> list[Message] | None:
    said = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        role = ROLES.get(head[1])
        if role is None:
            return None
        limit = len(text) if following is None else following.start()
        end = marks.end.search(text, head.end(), limit)
        content = text[head.end() : limit if end is None else end.start()]
        if role == "assistant" and following is None and not content.strip():
            continue
        said.append(Message(role, content))
    return said
