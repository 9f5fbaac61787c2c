"""Structured output: computes which tokens a grammar allows after each node of a draft tree. The sampler uses it.

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
from eyas.chat.json_schema import bound_schema

MAX_REASON_CHARS = 120
JSON_SPACE = r"\r?\n[ \t]{0,20}|[ \t]{1,2}"  # between the parts of JSON; without a bound, a weak model never ends


class GrammarVocab:
    """A target's vocabulary in llguidance's form. Building it takes up to a second, so build it once per target.

    Attributes:
        size: The number of columns of the target's logits.
        eos_ids: The end-of-turn ids.
        special_ids: The tokens that only their id stands for in a grammar, by their text. Besides the tokenizer's
            special tokens, llguidance treats every added token of the form <...> so, for example Qwen's <tool_call>.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Sequence[int]) -> None:
        """Builds the vocabulary.

        Args:
            tokenizer: the target's tokenizer.
            vocab_size: the number of columns of the target's logits, often more than the tokenizer has tokens.
            eos_ids: the end-of-turn ids; at least one.

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
        added = tokenizer.added_tokens_decoder
        self.special_ids = {
            entry.content: token for token, entry in added.items() if self.library.is_special_token(token)
        }


class Grammar:
    """A grammar that outputs must fit, compiled for one vocabulary. `start` returns the state of one output.

    `json_schema`, `regex` and `lark` take `around`: the grammar, in Lark syntax, of what surrounds the text. There,
    `@answer` stands for the text. None: the text is the whole output.
    """

    def __init__(self, vocab: GrammarVocab, text: str, what: str, around: str | None = None) -> None:
        """Compiles a grammar. Use `json_schema` or `regex` instead, which build `text`.

        Args:
            vocab: the target's vocabulary.
            text: the grammar in llguidance's own form, as JSON.
            what: the name of the grammar in error messages, for example "the JSON schema".
            around: see the class.

        Raises:
            InputError: llguidance does not support the grammar.
        """
        self.vocab = vocab
        if around is not None:
            inner = json.loads(text)["grammars"][0] | {"name": "answer"}
            text = json.dumps({"grammars": [{"lark_grammar": around}, inner]})
        self._matcher = LLMatcher(vocab.library, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if self._matcher.is_error():
            raise _unsupported(what, self._matcher.get_error())

    @classmethod
    def json_schema(cls, vocab: GrammarVocab, schema: Mapping[str, Any] | str, around: str | None = None) -> "Grammar":
        """Returns the grammar of JSON that fits a schema, given as a mapping or as text. Raises InputError."""
        try:
            text = json.dumps(bound_schema(json.loads(schema) if isinstance(schema, str) else schema))
            rules = LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": JSON_SPACE})
            return cls(vocab, rules, "the JSON schema", around)
        except ValueError as error:
            raise _unsupported("the JSON schema", str(error)) from error

    @classmethod
    def regex(cls, vocab: GrammarVocab, pattern: str, around: str | None = None) -> "Grammar":
        """Returns the grammar of texts that match the pattern from start to end. Raises InputError.

        The pattern has the syntax of Rust's regex crate.
        """
        return cls(vocab, LLMatcher.grammar_from_regex(pattern), "the regular expression", around)

    @classmethod
    def lark(cls, vocab: GrammarVocab, text: str, what: str, around: str | None = None) -> "Grammar":
        """Returns the grammar of a text in llguidance's Lark syntax. Raises InputError, which names it as `what`."""
        return cls(vocab, json.dumps({"grammars": [{"lark_grammar": text}]}), what, around)

    def start(self) -> "GrammarState":
        """Returns a new state, for an output that is still empty."""
        return GrammarState(self.vocab, self._matcher.deep_copy())


class GrammarState:
    """The position of one output in its grammar.

    `advance` and `allow` raise InputError if the output exceeds the limits of llguidance. The caller must then end this
    request; other requests are not affected.
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
        """Appends tokens to the output. Requirement: `allow` allowed each of them; none follows the end of turn."""
        for token in tokens:
            assert not self._has_ended, f"token {token} after the end of turn"
            if token in self._vocab.eos_ids:
                assert self._matcher.is_accepting(), "the end of turn before the grammar may stop"
                self._has_ended = True
            else:
                self._take(token)

    def allow(self, tokens_M: Sequence[int], parents_M: Sequence[int], valid_M: Sequence[bool] | None = None) -> Tensor:
        """Returns the tokens that the grammar allows after each node of a draft tree. The state does not change.

        Args:
            tokens_M: the token of each node. Node 0 is the root; `advance` must have appended it already.
            parents_M: the index of each node's parent.
            valid_M: False for nodes to ignore; None if all are valid.

        Returns:
            bool [M, W] on the host. The end of turn is allowed exactly where the grammar may stop. A row is all True
            for a node that is never accepted: an invalid or disallowed node, an end of turn, or a node below these.
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
        """Returns bool [W]: the tokens that the grammar allows next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise _unsupported("this output", self._matcher.get_error().partition(";")[0])
        allowed_W = np.unpackbits(bits, count=self._vocab.size, bitorder="little").view(np.bool_)
        forced, library = int(allowed_W.argmax()), self._vocab.library
        if library.is_special_token(forced) and not self._matcher.validate_tokens([forced]):
            # The grammar has the text of a special token. llguidance allows only the token, but refuses to take it.
            text = self._matcher.compute_ff_bytes()
            if text:
                allowed_W[[forced, *library.tokenize_bytes(text[:1])]] = False, True
        return allowed_W


def _unsupported(what: str, message: str) -> InputError:
    """Returns the error for a grammar or output that llguidance does not support.

    Args:
        what: the name of the grammar or output in the error.
        message: llguidance's error message.
    """
    reason = " ".join(message.split())[:MAX_REASON_CHARS]
    return InputError(f"llguidance cannot enforce {what} ({reason})", "Simplify it, or remove it from the request")


def _unsupported_tokenizer(what: str) -> InputError:
    problem = f"llguidance cannot read {what}, so structured output is not available"
    fix = "Save the target with a fast tokenizer (tokenizer.json), or remove the grammar from the request"
    return InputError(problem, fix)
