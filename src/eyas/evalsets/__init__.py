"""The shipped prompts: seven families of short tasks in a small world, written by a seeded grammar.

`example(family, split, index)` is a pure function: the same three arguments always give the same conversation.
The embedded target is trained on split `train`, `eyas quickstart` takes its prompts from `quickstart`, and `eyas bench`
and the tests measure on `eval`. Passages are long in `eval` and mostly short elsewhere, to save time.
No answer of `eval` occurs in the text of `train` (tools/make_embedded.py leaves such conversations out).

TURNS is a file of conversations with several answers, which tools/make_turns.py writes with the same words: long texts,
edits and loops of tool calls. `eyas bench` measures on them with the prompts "builtin:turns".
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eyas.evalsets.families.arithmetic import write_arithmetic
from eyas.evalsets.families.chat import write_chat
from eyas.evalsets.families.code import write_code
from eyas.evalsets.families.documents import draw_size, write_extraction, write_passages, write_summary
from eyas.evalsets.families.translation import write_translation
from eyas.evalsets.template_grammar import Messages

TURNS = Path(__file__).with_name("turns.jsonl.gz")
FAMILIES: dict[str, Callable[[random.Random], Messages]] = {
    "chat": write_chat,
    "code": write_code,
    "arithmetic": write_arithmetic,
    "extraction": write_extraction,
    "summary": write_summary,
    "passages": write_passages,
    "translation": write_translation,
}


@dataclass(frozen=True)
class Example:
    """A conversation of the grammar. The last message is the reference answer."""

    id: str
    family: str
    messages: Messages

    @property
    def prompt(self) -> Messages:
        """Everything before the last assistant message."""
        return self.messages[:-1]


def example(family: str, split: str, index: int) -> Example:
    """Returns conversation `index` of a family in a split. Raises KeyError for an unknown family."""
    rng = random.Random(f"{split}/{family}/{index}")
    if family == "passages" and split != "eval":
        messages = write_passages(rng, draw_size(rng))
    else:
        messages = FAMILIES[family](rng)
    return Example(f"{split}-{family}:{index}", family, messages)
