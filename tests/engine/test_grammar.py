"""Structured output: what is written fits, trees get the masks of their paths, and speculation changes no token.

Legend: B requests, M tree nodes, W target vocabulary.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher, LLParserLimits
from tests.tiny import VOCAB_SIZE, tiny_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import eyas
from eyas.base.errors import InputError
from eyas.engine.grammar import Grammar, GrammarState, GrammarVocab
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms
from eyas.tree.tree import Tree
from eyas.tree.verify import verify

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PHONE = r"(\+[0-9]{2} )?[0-9]{3,5}(-[0-9]{2}){1,2}"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def vocab(tokenizer: PreTrainedTokenizerBase) -> GrammarVocab:
    """One token a byte, special tokens, and 19 columns that the tokenizer does not know. Two ways to end a turn."""
    assert len(tokenizer) < VOCAB_SIZE
    return GrammarVocab(tokenizer, VOCAB_SIZE, [id_of(tokenizer, "<|end|>"), id_of(tokenizer, "<|im_end|>")])


@pytest.fixture(scope="module")
def embedded() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(Path(eyas.__file__).parent / "embedded" / "target")


@pytest.fixture(scope="module")
def embedded_vocab(embedded: PreTrainedTokenizerBase) -> GrammarVocab:
    """Tokens of many characters, across the borders of a grammar: `": "` may be one."""
    return GrammarVocab(embedded, len(embedded), [end_of(embedded)])


def id_of(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    number: Any = tokenizer.convert_tokens_to_ids(token)
    return int(number)


def end_of(tokenizer: PreTrainedTokenizerBase) -> int:
    number: Any = tokenizer.eos_token_id
    return int(number)


def following(grammar: Grammar, text: str, tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """What may follow the text, as the vocabulary spells it."""
    state = grammar.start()
    state.advance([id_of(tokenizer, letter) for letter in text])
    names: Any = tokenizer.convert_ids_to_tokens(state.allow([0], [0])[0].nonzero()[:, 0].tolist())
    return set(names)


ENDS = {"<|end|>", "<|im_end|>"}


def test_end_of_turn_exactly_where_the_grammar_may_stop(
    vocab: GrammarVocab, tokenizer: PreTrainedTokenizerBase
) -> None:
    grammar = Grammar.regex(vocab, "ab?(cd)*")
    assert following(grammar, "", tokenizer) == {"a"}
    assert following(grammar, "a", tokenizer) == {"b", "c"} | ENDS
    assert following(grammar, "ab", tokenizer) == {"c"} | ENDS
    assert following(grammar, "abc", tokenizer) == {"d"}
    assert following(Grammar.regex(vocab, "ab"), "ab", tokenizer) == ENDS, "nothing else is left"


@pytest.mark.parametrize("marker", ["<|user|>", "<|end|>", "<tool_call>"])
def test_the_text_of_a_special_token_is_written_in_bytes(marker: str) -> None:
    """llguidance allows only the token there, and then refuses it."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<tool_call>"])
    vocab = GrammarVocab(tokenizer, VOCAB_SIZE, [id_of(tokenizer, "<|im_end|>")])
    assert marker in vocab.special_ids
    for grammar, text in (
        (Grammar.regex(vocab, f"{re.escape(marker)}[0-9]"), f"{marker}7"),
        (Grammar.json_schema(vocab, {"enum": [f"a{marker}", f"b{marker}"]}), f'"a{marker}"'),
    ):
        state = grammar.start()
        for byte in text.encode():
            token = id_of(tokenizer, chr(byte))
            (allowed_W,) = state.allow([0], [0])
            assert allowed_W[token]
            assert not allowed_W[id_of(tokenizer, marker)]
            state.advance([token])
        assert state.allow([0], [0])[0].nonzero().tolist() == [[id_of(tokenizer, "<|im_end|>")]]


def test_finished(vocab: GrammarVocab, tokenizer: PreTrainedTokenizerBase) -> None:
    a, b, end = (id_of(tokenizer, token) for token in ("a", "b", "<|im_end|>"))
    state = Grammar.regex(vocab, "ab?").start()
    state.advance([a])
    assert not state.is_finished, "b may follow"
    state.advance([end])
    assert state.is_finished
    assert state.allow([end, a], [0, 0]).all(), "whatever comes now is cut away"
    with pytest.raises(AssertionError, match="after the end of turn"):
        state.advance([b])
    state = Grammar.regex(vocab, "ab").start()
    with pytest.raises(AssertionError, match="before the grammar may stop"):
        state.advance([a, end])
    state.advance([b])
    assert state.is_finished, "nothing but the end of turn may follow"
    state.advance([end])
    with pytest.raises(AssertionError, match="was not allowed"):
        Grammar.regex(vocab, "ab").start().advance([b])


def write(grammar: Grammar, logits: Any, sampling: SamplingParams, seed: int, most: int) -> list[int]:
    """Plain decoding of one answer, to its end of turn. logits(tokens so far) -> [W]."""
    batch, state, tokens = SamplingBatch.from_params([sampling], torch.device("cpu")), grammar.start(), []
    while len(tokens) < most and not (tokens and tokens[-1] in grammar.vocab.eos_ids):
        allowed_1W = state.allow([tokens[-1] if tokens else 0], [0])
        coin_1 = position_uniforms(torch.tensor([seed]), torch.tensor([len(tokens)]))
        logits_1W = logits(tokens)[None].masked_fill(~allowed_1W, -torch.inf)
        tokens.append(int(choose_tokens(logits_1W, batch, torch.tensor([0]), coin_1)))
        state.advance(tokens[-1:])
    return tokens


def random_model(num_words: int, likely: Sequence[int], seed: int) -> Any:
    """Logits by the last token. The likely ones get a little more, so that answers come to an end."""
    table = torch.randn(97, num_words, generator=torch.Generator().manual_seed(seed)) * 2
    table[:, list(likely)] += 3
    return lambda tokens: table[(tokens[-1] * 5 + len(tokens) if tokens else 0) % 97]


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        {"name", "age"} <= person.keys() <= {"name", "age", "tags"}
        and isinstance(person["name"], str)
        and len(person["name"]) <= 5
        and type(person["age"]) is int
        and 0 <= person["age"] <= 150
        and len(person.get("tags", [])) <= 3
        and set(person.get("tags", [])) <= {"a", "bb"}
    )


KINDS: dict[str, tuple[Any, Any]] = {
    "schema": (lambda vocab: Grammar.json_schema(vocab, PERSON), is_person),
    "schema as text": (lambda vocab: Grammar.json_schema(vocab, json.dumps(PERSON)), is_person),
    "object": (
        lambda vocab: Grammar.json_schema(vocab, {"type": "object"}),
        lambda text: isinstance(json.loads(text), dict),
    ),
    "regex": (lambda vocab: Grammar.regex(vocab, PHONE), lambda text: re.fullmatch(PHONE, text) is not None),
}


@pytest.mark.parametrize(("compiled", "fits"), KINDS.values(), ids=KINDS)
def test_what_a_random_model_writes_fits(
    vocab: GrammarVocab, tokenizer: PreTrainedTokenizerBase, compiled: Any, fits: Any
) -> None:
    likely = [id_of(tokenizer, token) for token in ('"', "}", ":", "<|end|>")]
    grammar, texts = compiled(vocab), set()
    for seed in range(40):
        tokens = write(grammar, random_model(VOCAB_SIZE, likely, seed), SamplingParams(1.5, top_p=0.95), seed, 1000)
        assert tokens[-1] in vocab.eos_ids, "it came to its end"
        text = tokenizer.decode(tokens[:-1])
        assert isinstance(text, str)
        assert fits(text), text
        texts.add(text)
    assert len(texts) > 20


def random_nodes(num_nodes: int, likely: Sequence[int], generator: torch.Generator) -> tuple[list[int], list[int]]:
    """A tree whose tokens are often ones that the grammar knows. Siblings may be equal: that does no harm here."""
    parents = [0] + [int(torch.randint(node, (1,), generator=generator)) for node in range(1, num_nodes)]
    tokens = [likely[int(torch.randint(len(likely), (1,), generator=generator))] for _ in range(num_nodes)]
    return tokens, parents


def test_a_tree_gets_the_masks_of_its_paths(embedded: PreTrainedTokenizerBase, embedded_vocab: GrammarVocab) -> None:
    """Each node against a state of its own that reads the answer and the path as one text."""
    grammar = Grammar.json_schema(embedded_vocab, PERSON)
    text = embedded.encode('{"name": "ab", "age": 12, "tags": ["a", "bb"]}', add_special_tokens=False)
    end, generator = end_of(embedded), torch.Generator().manual_seed(5)
    seen = dict.fromkeys(("open", "refused", "ended"), 0)
    for begin in range(len(text) + 1):
        state = grammar.start()
        state.advance(text[:begin])
        for _ in range(4):
            tokens, parents = random_nodes(24, [*text[begin : begin + 4], *text[-2:], end], generator)
            allowed_MW = state.allow(tokens, parents)
            for node in range(24):
                path: list[int] = []
                up = node
                while up:
                    path, up = [tokens[up], *path], parents[up]
                alone, kind = grammar.start(), "open"
                alone.advance(text[:begin])
                for token in path:
                    if not alone.allow([0], [0])[0, token]:
                        kind = "refused"
                        break
                    alone.advance([token])
                    if token == end:
                        kind = "ended"
                        break
                expected_W = alone.allow([0], [0])[0] if kind == "open" else torch.ones(embedded_vocab.size).bool()
                assert torch.equal(allowed_MW[node], expected_W), (begin, path)
                seen[kind] += 1
        assert torch.equal(state.allow([0], [0])[0], allowed_MW[0]), "the state is as before"
    assert min(seen.values()) > 30, seen


def test_nodes_without_a_row_cost_nothing(vocab: GrammarVocab, tokenizer: PreTrainedTokenizerBase) -> None:
    a, b = id_of(tokenizer, "a"), id_of(tokenizer, "b")
    state = Grammar.regex(vocab, "a*b").start()
    tokens, parents = [0, a, a, b], [0, 0, 1, 0]
    whole_MW, thinned_MW = state.allow(tokens, parents), state.allow(tokens, parents, [True, True, False, False])
    assert torch.equal(thinned_MW[:2], whole_MW[:2])
    assert thinned_MW[2:].all()
    assert not whole_MW[2:].all(dim=1).any()


def drafted(answer: list[int], held: int, num_words: int, generator: torch.Generator) -> Tree:
    """root -> the next two tokens of the answer, now and then wrong, with random siblings, mostly not allowed."""
    right = [*answer, 0, 0][held : held + 2]
    wrong = torch.randint(num_words, (3,), generator=generator).tolist()
    if torch.rand(1, generator=generator) < 0.3:
        right[1] = wrong[2]
    return Tree(
        tokens_BM=torch.tensor([[answer[held - 1], wrong[0], right[0], right[1], wrong[1]]]),
        parents_BM=torch.tensor([[0, 0, 0, 2, 1]]),
        depths_BM=torch.tensor([[0, 1, 1, 2, 2]]),
        scores_BM=torch.zeros(1, 5),
        valid_BM=torch.ones(1, 5, dtype=torch.bool),
        depth=2,
    )


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(1.2, top_k=20)], ids=["greedy", "drawn"])
def test_speculation_writes_the_same_words(
    embedded: PreTrainedTokenizerBase, embedded_vocab: GrammarVocab, sampling: SamplingParams
) -> None:
    grammar, size = Grammar.json_schema(embedded_vocab, PERSON), embedded_vocab.size
    batch, generator = SamplingBatch.from_params([sampling], torch.device("cpu")), torch.Generator().manual_seed(6)
    likely, accepted_lengths = [*embedded_vocab.eos_ids, *embedded.encode('"}', add_special_tokens=False)], []
    for seed in range(15):
        logits = random_model(size, likely, seed)
        plain = write(grammar, logits, sampling, seed, 60)
        state, text = grammar.start(), plain[:1]
        state.advance(text)
        while len(text) < len(plain):
            tree = drafted(plain, len(text), size, generator)
            tokens, parents = tree.tokens_BM[0].tolist(), tree.parents_BM[0].tolist()
            paths = [text]
            for node in range(1, 5):
                paths.append([*paths[parents[node]], tokens[node]])
            logits_MW = torch.stack([logits(path) for path in paths]).masked_fill(
                ~state.allow(tokens, parents), -torch.inf
            )
            coins_M = position_uniforms(torch.tensor(seed), len(text) + tree.depths_BM[0])
            ids_M = choose_tokens(logits_MW, batch, torch.zeros(5, dtype=torch.int64), coins_M)
            accepted = verify(tree, ids_M[None])
            new = accepted.tokens_BS[0, : int(accepted.lengths_B[0])].tolist()[: len(plain) - len(text)]
            state.advance(new)
            text = text + new
            accepted_lengths.append(len(new))
        assert text == plain
    assert {1, 2, 3} == set(accepted_lengths)


WRONG: dict[str, tuple[Any, str]] = {
    "keyword": (lambda v: Grammar.json_schema(v, {"not": {"type": "string"}}), r'Unimplemented keys: \["not"\]'),
    "type": (lambda v: Grammar.json_schema(v, {"type": "strin"}), "Invalid type: strin"),
    "remote": (lambda v: Grammar.json_schema(v, {"$ref": "http://example.com/x"}), "does not fetch"),
    "contradiction": (
        lambda v: Grammar.json_schema(v, {"type": "string", "minLength": 5, "maxLength": 2}),
        "minLength",
    ),
    "no json": (lambda v: Grammar.json_schema(v, "{"), "line 1"),
    "no schema": (lambda v: Grammar.json_schema(v, "3"), "Expecting object schema"),
    "regex": (lambda v: Grammar.regex(v, "a("), "unclosed group"),
    "look-ahead": (lambda v: Grammar.regex(v, "(?=a)b"), "look-around"),
}


@pytest.mark.parametrize(("compiled", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_enforced_is_refused(vocab: GrammarVocab, compiled: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        compiled(vocab)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", ["max_items_in_row", "max_lexer_states"])
def test_an_answer_that_outgrows_the_library_is_refused(
    vocab: GrammarVocab, tokenizer: PreTrainedTokenizerBase, limit: str
) -> None:
    """Not cut short and called finished. The first limit shows when a token is taken, the second in a mask."""
    tower = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}
    limits = LLParserLimits(**{limit: 5, "verbose_errors": False})
    matcher = LLMatcher(vocab.library, LLMatcher.grammar_from_json_schema(tower), log_level=0, limits=limits)
    assert not matcher.is_error()
    state, bracket = GrammarState(vocab, matcher), id_of(tokenizer, "[")

    def write_much() -> None:
        for _ in range(20):
            state.allow([0], [0])
            state.advance([bracket])

    with pytest.raises(InputError, match="cannot enforce this output"):
        write_much()


def test_vocabularies_that_cannot_be_read_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError, match=r"cannot read this tokenizer\.json"):
        GrammarVocab(tokenizer, 100, [3])
    with pytest.raises(InputError, match="slow tokenizer"):
        GrammarVocab(PreTrainedTokenizerBase(), 100, [3])


def test_white_space_is_bounded(embedded: PreTrainedTokenizerBase, embedded_vocab: GrammarVocab) -> None:
    """A model that likes spaces best must still go on."""
    for begin in ("{", '{"name":', '{"name": "a",'):
        state, text = Grammar.json_schema(embedded_vocab, PERSON).start(), begin
        state.advance(embedded.encode(begin, add_special_tokens=False))
        while True:
            (allowed_W,) = state.allow([0], [0])
            spaces = [i for i in allowed_W.nonzero()[:, 0].tolist() if not str(embedded.decode([i])).strip(" \n\t")]
            if not spaces:
                break
            state.advance(spaces[:1])
            text += str(embedded.decode(spaces[:1]))
            assert len(text) < len(begin) + 24
        assert len(text) > len(begin)
