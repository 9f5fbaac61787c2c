"""Structured output behind thoughts: the thoughts may end anywhere in a drafted path."""

import dataclasses
import json
from typing import Any

import pytest
from tests.engine.small import CONTEXT, Spoken, drive, replay_engine, tokens
from tests.tiny import VOCAB_SIZE, tiny_tokenizer

from eyas.chat.tool_grammar import ANY_TEXT, write_answer_grammar
from eyas.engine.engine import Engine
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.request import Request, RequestOutput
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
NUM_REQUESTS, MAX_TOKENS = 16, 80


def runs_of(output: RequestOutput) -> list[list[int]]:
    """The tokens of each round; the first token comes with the prompt."""
    runs, begin = [output.token_ids[:1]], 1
    for length in output.accepted:
        runs.append(output.token_ids[begin : begin + length])
        begin += length
    return runs


@pytest.mark.parametrize("thoughts", ["<think>TEXT</think>", "TEXT</think>"], ids=["written", "opened"])
@pytest.mark.parametrize("shape", [chain_shape(4), TreeShape(4, 3, 12)], ids=["chain", "tree"])
def test_thoughts_that_end_in_a_drafted_path(llama: Spoken, shape: TreeShape, thoughts: str) -> None:
    """Greedy, float32: the same tokens as without drafts, and the structured output is whole in each answer."""
    tokenizer: Any = tiny_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    begin, end = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    vocab = GrammarVocab(tokenizer, VOCAB_SIZE, llama.target.info.eos_ids)
    around = write_answer_grammar(thoughts, "", vocab.special_ids)
    assert ANY_TEXT in around
    requests = []
    for i in range(NUM_REQUESTS):
        # A random target never ends its thoughts, so their length is bounded.
        bounded = around.replace(ANY_TEXT, rf"(.|\n){{2,{3 + i % 8}}}")
        prompt, grammar = llama.requests[i % 9].prompt_ids[: 5 + i], Grammar.json_schema(vocab, SCHEMA, bounded)
        sampling = SamplingParams(logit_bias={begin: 100.0})
        requests.append(Request(f"r{i}", prompt, MAX_TOKENS, sampling, grammar=grammar))
    plain = tokens(drive(Engine(llama.target, (), 3, CONTEXT), requests))
    drafted = drive(
        replay_engine(dataclasses.replace(llama, requests=tuple(requests), answers=plain), shape, 3), requests
    )
    assert tokens(drafted) == plain
    num_inside = 0
    for output in drafted.values():
        assert output.finish_reason == "stop"
        before, _, after = tokenizer.decode(output.token_ids).rpartition("</think>")
        assert before.startswith("<think>") == thoughts.startswith("<think>")
        answer = json.loads(after.removesuffix("<|end|>"))
        assert set(answer) == {"n", "ok"}
        assert 0 <= answer["n"] <= 99
        num_inside += any(end in run[:-1] and run[0] != end for run in runs_of(output))
    assert num_inside >= 2, "thoughts ended inside of accepted paths"
