"""The shipped prompts: seven families of short tasks in a small world, and three of conversations with several answers.

`example(family, split, index)` is a pure function: the same three arguments always give the same conversation.
The embedded target is trained on split `train`, `eyas quickstart` takes its prompts from `quickstart`, and `eyas bench`
and the tests measure on `eval`. Passages are long in `eval` and mostly short elsewhere, to save time.
No answer of `eval` occurs in the text of `train` (tools/make_embedded.py leaves such conversations out).
The embedded target is not trained on TURN_FAMILIES, which `eyas bench` measures with the prompts "builtin:turns".
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eyas.evalsets.families.arithmetic import write_arithmetic
from eyas.evalsets.families.chat import write_chat
from eyas.evalsets.families.code import write_code
from eyas.evalsets.families.documents import draw_size, write_extraction, write_passages, write_summary
from eyas.evalsets.families.files import TOOLS, write_agent, write_edit
from eyas.evalsets.families.register import write_register
from eyas.evalsets.families.translation import write_translation
from eyas.evalsets.template_grammar import Messages

FAMILIES: dict[str, Callable[[random.Random], Messages]] = {
    "chat": write_chat,
    "code": write_code,
    "arithmetic": write_arithmetic,
    "extraction": write_extraction,
    "summary": write_summary,
    "passages": write_passages,
    "translation": write_translation,
}
TURN_FAMILIES: dict[str, Callable[[random.Random, int], Messages]] = {
    "long_context": write_register,
    "edit": write_edit,
    "agent": write_agent,
}


@dataclass(frozen=True)
class Example:
    """A conversation of the grammar. The last message is the reference answer. tools: those that answers call."""

    id: str
    family: str
    messages: Messages
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def prompt(self) -> Messages:
        """Everything before the last assistant message."""
        return self.messages[:-1]


def example(family: str, split: str, index: int) -> Example:
    """Returns conversation `index` of a family in a split. Raises KeyError for an unknown family."""
    rng = random.Random(f"{split}/{family}/{index}")
    if family in TURN_FAMILIES:
        messages = TURN_FAMILIES[family](rng, index)
        return Example(f"{split}-{family}:{index}", family, messages, TOOLS if family == "agent" else ())
    if family == "passages" and split != "eval":
        messages = write_passages(rng, draw_size(rng))
    else:
        messages = FAMILIES[family](rng)
    return Example(f"{split}-{family}:{index}", family, messages)
