"""Structured output: which tokens may follow, after the answer so far and after every path of a draft tree.

Legend: M tree nodes, W target vocabulary.

The grammar engine is llguidance (MIT; also behind vLLM and SGLang). It runs on the host, so a round with a grammar has
to bring its tree to the host before the target's logits are masked.

    schema {"a": true | false}         node          may follow
    answer so far {"a":                root          true, false, t, f, ...
        root ─┬─ tr ─── ue             tr            ue, u
              └─ nu                    ue            }
                                       nu            anything: the root's mask leaves nu out, so it is never accepted
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from eyas.base.errors import InputError


class GrammarVocab:
    """A target's vocabulary as the grammar engine reads it; made once for a target, in up to a second."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """vocab_size: columns of the target's logits, often more than the tokenizer knows. eos_ids: end of turn.

        Raises InputError for a tokenizer that the library cannot read.
        """
        assert eos_ids, "an answer that fits the grammar must be able to end"
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise _refused_tokenizer(f"the slow tokenizer {type(tokenizer).__name__}")
        self.size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        try:
            self.library: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_ids))
        except ValueError as error:
            raise _refused_tokenizer(f"a tokenizer with {error}") from error


class Grammar:
    """What an answer must look like, compiled for one vocabulary. Requests share it; each has its own state."""

    def __init__(self, vocab: GrammarVocab, text: str, what: str) -> None:
        """text: in llguidance's own form; the class methods make it. Raises InputError with the library's words."""
        self.vocab = vocab
        self._matcher = LLMatcher(vocab.library, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if self._matcher.is_error():
            raise _refusal(what, self._matcher.get_error())

    @classmethod
    def json_schema(cls, vocab: GrammarVocab, schema: Mapping[str, Any] | str) -> "Grammar":
        """Answers are JSON that fits the schema, a mapping or its text."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            return cls(vocab, LLMatcher.grammar_from_json_schema(text), "a JSON schema")
        except ValueError as error:
            raise _refusal("a JSON schema", str(error)) from error

    @classmethod
    def json_object(cls, vocab: GrammarVocab) -> "Grammar":
        """Answers are any JSON object."""
        return cls.json_schema(vocab, {"type": "object"})

    @classmethod
    def regex(cls, vocab: GrammarVocab, pattern: str) -> "Grammar":
        """Answers match the pattern from end to end, in the syntax of Rust's regex crate."""
        return cls(vocab, LLMatcher.grammar_from_regex(pattern), "a regular expression")

    def start(self) -> "GrammarState":
        """The state of an empty answer."""
        return GrammarState(self.vocab, self._matcher.deep_copy())


class GrammarState:
    """Where one answer stands in its grammar.

    InputError from `advance` or `allow`: the answer has outgrown the library's limits, and only this request must end.
    """

    def __init__(self, vocab: GrammarVocab, matcher: LLMatcher) -> None:
        self._vocab = vocab
        self._matcher = matcher
        self._has_ended = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing but the end of turn may follow, or it has been said."""
        return self._has_ended or self._matcher.is_stopped()

    def advance(self, tokens: Sequence[int]) -> None:
        """Take tokens that the masks allowed. Nothing may come after the end of turn."""
        for token in tokens:
            assert not self._has_ended, f"token {token} after the end of turn"
            if token in self._vocab.eos_ids:
                assert self._matcher.is_accepting(), "the end of turn before the grammar may stop"
                self._has_ended = True
            else:
                self._take(token)

    def allow(self, tokens_M: Sequence[int], parents_M: Sequence[int], valid_M: Sequence[bool] | None = None) -> Tensor:
        """bool [M, W] on the host: the tokens that may follow after each node; node 0 is the root, taken already.

        End of turn is allowed exactly where the grammar may stop. All True for nodes that are never accepted: not
        valid, disallowed themselves, at or behind an end of turn. The state is afterwards as before.
        """
        allowed_MW = np.ones((len(tokens_M), self._vocab.size), dtype=np.bool_)
        children: list[list[int]] = [[] for _ in tokens_M]
        for node, parent in enumerate(parents_M):
            if node and (valid_M is None or valid_M[node]):
                children[parent].append(node)

        def visit(node: int) -> None:
            allowed_MW[node] = self._following()
            for child in children[node]:
                token = tokens_M[child]
                if allowed_MW[node, token] and token not in self._vocab.eos_ids:
                    self._take(token)
                    visit(child)
                    done = self._matcher.rollback(1)
                    assert done, self._matcher.get_error()

        if not self._has_ended:
            visit(0)
        return torch.from_numpy(allowed_MW)

    def _take(self, token: int) -> None:
        assert self._matcher.validate_tokens([token]) == 1, f"token {token} was not allowed"
        if not self._matcher.consume_token(token):
            raise _refusal("an answer", self._matcher.get_error())

    def _following(self) -> np.ndarray:
        """bool [W]: the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise _refusal("an answer", self._matcher.get_error())
        return np.unpackbits(bits, count=self._vocab.size, bitorder="little").view(np.bool_)


def _refusal(what: str, message: str) -> InputError:
    return InputError(
        f"{what} that cannot be enforced ({' '.join(message.split())})",
        "one that llguidance supports",
        "simplify it, or leave structured output out",
    )


def _refused_tokenizer(found: str) -> InputError:
    return InputError(
        found,
        "a fast tokenizer whose tokens the target has, for structured output",
        "save the target with its own tokenizer.json, or leave structured output out",
    )
