"""Structured output: which tokens may follow the output so far and each path of a draft tree. The sampler uses it.

Legend: M tree nodes, W target vocabulary.

The grammar engine is llguidance (MIT; vLLM and SGLang use it too). It runs on the host, so a round with a grammar
copies its tree to the host before the target's logits are masked.

    schema {"a": true | false}         node          may follow
    output so far {"a":                root          true, false, t, f, ...
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

MAX_REASON_CHARS = 120


class GrammarVocab:
    """A target's vocabulary for the grammar engine; built once for a target, in up to a second."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Builds the vocabulary.

        Args:
            vocab_size: columns of the target's logits, often more than the tokenizer has tokens.
            eos_ids: end-of-turn ids.

        Raises:
            InputError: llguidance cannot read the tokenizer.
        """
        assert eos_ids, "an output that fits the grammar must be able to end"
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise _unsupported_tokenizer(f"the slow tokenizer {type(tokenizer).__name__}")
        self.size = vocab_size
        self.eos_ids = frozenset(eos_ids)
        try:
            self.library: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_ids))
        except ValueError as error:
            raise _unsupported_tokenizer("this tokenizer.json") from error


class Grammar:
    """A constraint on outputs, compiled for one vocabulary. Requests share it; each has its own GrammarState."""

    def __init__(self, vocab: GrammarVocab, text: str, what: str) -> None:
        """Compiles a grammar; the class methods build its text.

        Args:
            text: in llguidance's own form.
            what: the user's name of the grammar, for the error.

        Raises:
            InputError: llguidance does not support the grammar.
        """
        self.vocab = vocab
        self._matcher = LLMatcher(vocab.library, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if self._matcher.is_error():
            raise _unsupported(what, self._matcher.get_error())

    @classmethod
    def json_schema(cls, vocab: GrammarVocab, schema: Mapping[str, Any] | str) -> "Grammar":
        """Returns the grammar of JSON that fits a schema, given as a mapping or as text. Raises InputError."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            return cls(vocab, LLMatcher.grammar_from_json_schema(text), "the JSON schema")
        except ValueError as error:
            raise _unsupported("the JSON schema", str(error)) from error

    @classmethod
    def json_object(cls, vocab: GrammarVocab) -> "Grammar":
        """Returns the grammar of any JSON object."""
        return cls.json_schema(vocab, {"type": "object"})

    @classmethod
    def regex(cls, vocab: GrammarVocab, pattern: str) -> "Grammar":
        """Returns the grammar of texts that match a whole pattern (syntax of Rust's regex crate). Raises InputError."""
        return cls(vocab, LLMatcher.grammar_from_regex(pattern), "the regular expression")

    def start(self) -> "GrammarState":
        """Returns the grammar state of an empty output."""
        return GrammarState(self.vocab, self._matcher.deep_copy())


class GrammarState:
    """The position of one output in its grammar.

    `advance` and `allow` raise InputError if the output exceeds the limits of llguidance; only this request must end.
    """

    def __init__(self, vocab: GrammarVocab, matcher: LLMatcher) -> None:
        self._vocab = vocab
        self._matcher = matcher
        self._has_ended = False

    @property
    def is_finished(self) -> bool:
        """True if the output has ended, or if only the end of turn may follow."""
        return self._has_ended or self._matcher.is_stopped()

    def advance(self, tokens: Sequence[int]) -> None:
        """Appends tokens that the masks allowed. No token may follow the end of turn."""
        for token in tokens:
            assert not self._has_ended, f"token {token} after the end of turn"
            if token in self._vocab.eos_ids:
                assert self._matcher.is_accepting(), "the end of turn before the grammar may stop"
                self._has_ended = True
            else:
                self._take(token)

    def allow(self, tokens_M: Sequence[int], parents_M: Sequence[int], valid_M: Sequence[bool] | None = None) -> Tensor:
        """Returns bool [M, W] on the host: the tokens that may follow each node. The state does not change.

        Node 0 is the root, which `advance` has appended already. End of turn is allowed exactly where the grammar may
        stop. Rows are all True for nodes that are never accepted: invalid ones, disallowed ones, and those at or behind
        an end of turn.
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
            raise _unsupported("this output", self._matcher.get_error().partition(";")[0])

    def _following(self) -> np.ndarray:
        """Returns bool [W]: the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise _unsupported("this output", self._matcher.get_error().partition(";")[0])
        return np.unpackbits(bits, count=self._vocab.size, bitorder="little").view(np.bool_)


def _unsupported(what: str, message: str) -> InputError:
    """Returns the error for a grammar or output that llguidance does not support. message: its reason."""
    reason = " ".join(message.split())[:MAX_REASON_CHARS]
    return InputError(f"llguidance cannot enforce {what} ({reason})", "Simplify it, or remove it from the request")


def _unsupported_tokenizer(what: str) -> InputError:
    return InputError(
        f"llguidance cannot read {what}, so structured output is not available",
        "Save the target with a fast tokenizer of its own (tokenizer.json), or send no constraint",
    )
