"""A rendered conversation as text, with what is supervised in colour."""

import os
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from eyas.chat.render import Rendered

GREEN, RESET = "\x1b[32m", "\x1b[0m"
OPEN, CLOSE = "⟦", "⟧"


def show(rendered: Rendered, tokenizer: PreTrainedTokenizerBase, color: bool | None = None) -> str:
    """The row as text: supervised tokens green, or within ⟦ ⟧ without colour.

    color None follows https://no-color.org: colour unless NO_COLOR is set and not empty.
    """
    if color is None:
        color = not os.environ.get("NO_COLOR")
    before, after = (GREEN, RESET) if color else (OPEN, CLOSE)
    pieces = []
    start = 0
    for supervised, run in groupby(rendered.loss_mask):
        end = start + len(list(run))
        text = _printable(_piece(rendered.ids, start, end, tokenizer))
        pieces.append(f"{before}{text}{after}" if supervised else text)
        start = end
    return "".join(pieces)


def _piece(ids: list[int], start: int, end: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of ids[start:end] within the row; some tokenizers drop the first space of what they decode alone."""
    head, whole = (_decode(ids[:stop], tokenizer) for stop in (start, end))
    return whole[len(head) :] if whole.startswith(head) else _decode(ids[start:end], tokenizer)


def _decode(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def _printable(text: str) -> str:
    """Control characters as pictures, so that a conversation cannot steer the terminal that shows it."""
    return "".join(_picture(char) for char in text)


def _picture(char: str) -> str:
    if char < " " and char not in "\n\t":
        return chr(0x2400 + ord(char))
    return "\ufffd" if "\x7f" <= char <= "\x9f" else char
