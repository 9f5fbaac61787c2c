"""Prompts for the text between a prefix and a suffix (fill in the middle), in the form of the target's family.

A family is recognised by its special tokens, which are those of the model cards of Qwen2.5-Coder, CodeGemma,
StarCoder 2, Granite Code, DeepSeek-Coder, Code Llama, Codestral and Seed-Coder.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from eyas.base.config import load_toml
from eyas.base.errors import InputError

FORMS: list[str] = load_toml(Path(__file__).with_suffix(".toml"))["forms"]
PLACE = re.compile(r"(?<!\[)(PREFIX|SUFFIX)(?!\])")


class Infill:
    """The form in which one target completes the middle of a text.

    Attributes:
        marker_ids: The ids of the markers. One of them in an output ends it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Finds the form. Raises InputError if the tokenizer has the tokens of no known family."""
        vocab = tokenizer.get_vocab()
        forms = [[part for part in PLACE.split(form) if part] for form in FORMS]
        has_markers = [all(part in vocab for part in parts if not PLACE.fullmatch(part)) for parts in forms]
        if not any(has_markers):
            problem = "The tokenizer of this model has no tokens for suffixes (fill in the middle)"
            raise InputError(problem, "Remove suffix, or serve a model that was trained with one")
        self._parts = forms[has_markers.index(True)]
        self._vocab = vocab
        self._tokenizer = tokenizer
        self.marker_ids = tuple(vocab[part] for part in self._parts if not PLACE.fullmatch(part))

    def encode(self, prefix_ids: Sequence[int], suffix: str) -> tuple[int, ...]:
        """Returns the ids of a prompt.

        Args:
            prefix_ids: the ids of the text before the gap. A begin-of-text token in front stays in front.
            suffix: the text behind the gap.
        """
        begin = list(prefix_ids[:1]) if prefix_ids and prefix_ids[0] == self._tokenizer.bos_token_id else []
        suffix_ids = self._tokenizer.encode(suffix, add_special_tokens=False)
        texts = {"PREFIX": list(prefix_ids[len(begin) :]), "SUFFIX": suffix_ids}
        ids = [texts[part] if part in texts else [self._vocab[part]] for part in self._parts]
        return (*begin, *chain.from_iterable(ids))
