"""Our own prompts: seven families of short tasks in a small world, written by a seeded grammar.

`example(family, split, index)` is a pure function: the same three arguments give the same conversation for ever.
The embedded target is trained on split `train`, the quickstart takes its prompts from `quickstart`, and everything
that is measured is measured on `eval`. Passages are long in `eval` and mostly short elsewhere, to spare time.
No `eval` answer occurs in the `train` text (checked when the target is made).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from eyas.evalsets.families import arithmetic, chat, code, extraction, passages, summary, translation

Messages = list[dict[str, str]]

FAMILIES: dict[str, Callable[[random.Random], Messages]] = {
    "chat": chat.write,
    "code": code.write,
    "arithmetic": arithmetic.write,
    "extraction": extraction.write,
    "summary": summary.write,
    "passages": passages.write,
    "translation": translation.write,
}


@dataclass(frozen=True)
class Example:
    """A conversation of the grammar: the last message is the reference answer."""

    id: str
    family: str
    messages: Messages

    @property
    def prompt(self) -> Messages:
        """Everything before the last assistant message."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The reference answer to `prompt`."""
        return self.messages[-1]["content"]


def example(family: str, split: str, index: int) -> Example:
    """Conversation `index` of a family in a split; raises KeyError for an unknown family."""
    rng = random.Random(f"{split}/{family}/{index}")
    if family == "passages" and split != "eval":
        messages = passages.write(rng, passages.draw_size(rng))
    else:
        messages = FAMILIES[family](rng)
    return Example(f"{split}-{family}:{index}", family, messages)
