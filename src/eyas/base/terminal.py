"""Colors for a terminal, and text that cannot control it. The verbs that print prompts or answers call this module."""

import os
import re
from typing import TextIO

GREEN, RED, BOLD, DIM, RESET = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
OPEN, CLOSE = "⟦", "⟧"
"""They mark text where there are no colors."""
# Control characters, and those that change the direction of the text after them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def has_colors(stream: TextIO) -> bool:
    """Returns True if the stream is a terminal and NO_COLOR is not set or empty (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def mark(text: str, color: str | None) -> str:
    """Marks a text for a terminal; without a color by ⟦ and ⟧ around it."""
    return f"{OPEN}{text}{CLOSE}" if color is None else f"{color}{text}{RESET}"


def make_printable(text: str) -> str:
    """Replaces control characters except tabs and line ends by symbols."""
    return _CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if found[0] < " " else "\ufffd", text)
