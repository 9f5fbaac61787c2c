"""Measures how tool calls are read and enforced. `benchmarks/prove_clients.py` calls it.

    python benchmarks/tool_calls.py --env-dir DIR --data DIR [--only PART ...]

    part        figure
    parse       share of BFCL's calls that are read back from text that others' code has written
    peers       share of these texts that eyas and the parsers of vLLM and openai-harmony read alike
    splits      texts whose calls change if the text comes in pieces
    drafts      requests whose calls differ between no drafts, chains and trees
    enforced    share of answers at temperature 1 whose calls fit the schema
    speed       time per token with a grammar, divided by the time without

DIR/clients has TRL (its chat templates), mistral-common and openai-harmony, DIR/vllm has vLLM. The data are BFCL's
cases (bfcl-*.jsonl). openai-harmony downloads its vocabulary, unless TIKTOKEN_ENCODINGS_BASE names a directory with
o200k_base.tiktoken. Prints one JSON object for each row and exits 1 if a row misses its target.
"""

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import torch
from result_rows import Row, print_rows
from tool_parser_peers import peer_rows
from tool_texts import (
    Case,
    Written,
    enforced_texts,
    library_texts,
    parse,
    pythonic_texts,
    read_cases,
    template_texts,
)

from eyas.chat.conversation import Message
from eyas.chat.render import render_text
from eyas.chat.tool_format import ToolFormat
from eyas.chat.tool_grammar import CallRules, write_tool_grammar
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.grammar import Grammar, GrammarVocab
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import resolve_head
from eyas.tree.intervals import median_interval
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape, chain_shape

BOUND = {"type": "string", "maxLength": 16}
NUM_ENFORCED, NUM_DRAFTS, NUM_SPEED = 200, 24, 12
SPEED_REPEATS = 3
MAX_TOKENS = 200
TREE = TreeShape(6, 4, 16)


def parse_rows(texts: Sequence[Written]) -> Iterator[Row]:
    """Yields, for each source, the share of cases whose calls are read back equal."""
    for source in sorted({written.source for written in texts}):
        own = [written for written in texts if written.source == source]
        equal = sum(
            [(call.name, json.loads(call.arguments)) for call in parse(written, [written.text]).calls]
            == [(name, arguments) for name, arguments in written.case.calls]
            for written in own
        )
        yield Row(
            f"calls read back: {source} ({own[0].family}, {len(own)} cases)", equal / len(own), "1", equal == len(own)
        )


def split_rows(texts: Sequence[Written]) -> Iterator[Row]:
    """Yields the number of texts that give other calls in two pieces, cut anywhere, or in random pieces."""
    dice = random.Random(0)
    for family in sorted({written.family for written in texts}):
        own = [written for written in texts if written.family == family]
        unequal = num_splits = 0
        for written in dice.sample(own, min(len(own), 60)):
            whole, text = parse(written, [written.text]), written.text
            cuts = [[cut] for cut in range(1, len(text))]
            cuts += [sorted(dice.choices(range(len(text)), k=dice.randint(2, 30))) for _ in range(40)]
            for cut in cuts:
                pieces = [text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)]
                num_splits += 1
                unequal += parse(written, pieces) != whole
        yield Row(f"splits that change the calls: {family} (of {num_splits})", unequal, "0", unequal == 0)


# --- the embedded pair -----------------------------------------------------------------------------------------------


def bounded(schema: Any) -> Any:
    """Returns a schema whose strings and lists are bounded, so that a model that knows no tools ends its call."""
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "object":
        inner = {key: bounded(value) for key, value in schema.get("properties", {}).items()}
        kept = {key: schema[key] for key in ("required",) if key in schema}
        return {"type": "object", "properties": inner, "additionalProperties": False, **kept}
    if kind == "array":
        return {"type": "array", "items": bounded(schema.get("items", BOUND)), "maxItems": 3}
    if kind == "integer":
        return {"type": "integer", "minimum": 0, "maximum": 9999}
    if kind == "boolean" or "enum" in schema:
        return {key: schema[key] for key in ("type", "enum") if key in schema}
    return {"type": "number", "minimum": 0, "maximum": 9999} if kind == "number" else BOUND


class Pair:
    """The embedded pair in float32, with requests that must call the tools of BFCL's cases."""

    def __init__(self) -> None:
        self.stored = read_head(resolve_head(EMBEDDED), torch.float32)
        self.target = Target.load(EMBEDDED, torch.float32, self.stored.config.aux_layer_ids)
        self.format = ToolFormat(self.target.tokenizer)
        info = self.target.info
        self.vocab = GrammarVocab(self.target.tokenizer, info.vocab_size, info.eos_ids)

    def requests(self, cases: Sequence[Case], count: int, temperature: float, is_named: bool) -> list[Request]:
        """Returns requests whose answers must be calls; of the first tool only with `is_named`."""
        assert self.format.family is not None
        requests = []
        for number in range(count):
            tools = self.tools(cases[number % len(cases)], is_named)
            prompt = render_text([Message("user", f"Question {number}")], self.target.tokenizer, True, tools)
            rules = CallRules(tools, must_call=True, is_single=is_named)
            text = write_tool_grammar(self.format.family, rules, {}, self.vocab.eos_ids)
            requests.append(
                Request(
                    str(number),
                    tuple(self.target.tokenizer.encode(prompt, add_special_tokens=False)),
                    MAX_TOKENS if is_named else 4 * MAX_TOKENS,
                    SamplingParams(temperature=temperature),
                    seed=number,
                    wants_text=True,
                    speculation="max",
                    grammar=Grammar.lark(self.vocab, text, "the tools"),
                )
            )
        return requests

    def tools(self, case: Case, is_named: bool) -> list[dict[str, Any]]:
        """Returns the tools of a case with bounded schemas."""
        tools = []
        for tool in case.tools[: 1 if is_named else 3]:
            function = tool["function"]
            short = {"name": function["name"], "parameters": bounded(function["parameters"])}
            tools.append({"type": "function", "function": short})
        return tools

    def run(self, requests: Sequence[Request], shape: TreeShape | None) -> dict[str, RequestOutput]:
        """Runs the requests and returns their outputs by id. shape: that of the drafts; None for no drafts."""
        drafts = [] if shape is None else [Eagle3Spec.on(self.target.model.device, self.stored, shape)]
        engine = Engine(self.target, drafts, 4, 2048)
        return {output.request.id: output for output in plain_loop(engine, RequestList(iter(requests)))}


def draft_rows(pair: Pair, cases: Sequence[Case]) -> Iterator[Row]:
    """Yields the number of greedy requests whose tokens change with the drafts."""
    requests = pair.requests(cases, NUM_DRAFTS, 0.0, is_named=True)
    plain, *drafted = (pair.run(requests, shape) for shape in (None, chain_shape(4), TREE))
    for name, outputs in zip(("chains", "trees"), drafted, strict=True):
        differing = sum(outputs[key].token_ids != plain[key].token_ids for key in plain)
        accepted = sum(sum(output.accepted) - len(output.accepted) for output in outputs.values())
        text = f"greedy calls that differ with {name} (of {len(plain)}; {accepted} draft tokens accepted)"
        yield Row(text, differing, "0", differing == 0 and accepted > 0)


def enforced_rows(pair: Pair, cases: Sequence[Case]) -> Iterator[Row]:
    """Yields the number of answers at temperature 1 whose calls fit the schemas of their functions."""
    for is_named in (True, False):
        requests = pair.requests(cases, NUM_ENFORCED, 1.0, is_named)
        fitting = 0
        for key, output in pair.run(requests, TREE).items():
            tools = pair.tools(cases[int(key) % len(cases)], is_named)
            schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
            parser = pair.format.parser(tools, ())
            parsed = parser.feed(output.text) + parser.finish()
            fits = [jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments)) for call in parsed.calls]
            fitting += bool(fits) and all(fits) and not parsed.content
        name = "named" if is_named else "required"
        yield Row(
            f"{name}: answers with fitting calls (of {NUM_ENFORCED})",
            fitting,
            str(NUM_ENFORCED),
            fitting == NUM_ENFORCED,
        )


def speed_rows(pair: Pair, cases: Sequence[Case]) -> Iterator[Row]:
    """Yields the time per round with a grammar, divided by the time of the same prompts without one, in rotated order.

    Without drafts, a round is a token. With drafts, the grammar changes the text and so the acceptance, but not what a
    round has to do.
    """
    bound = pair.requests(cases, NUM_SPEED, 0.0, is_named=True)
    for name, shape in (("no drafts", None), ("trees", TREE)):
        ratios = []
        lengths = {name: len(output.token_ids) for name, output in pair.run(bound, shape).items()}
        for number, request in enumerate(bound * SPEED_REPEATS):
            free = dataclasses.replace(request, max_tokens=lengths[request.id], grammar=None)
            order = (request, free) if number % 2 else (free, request)
            outputs = {one is request: pair.run([one], shape)[one.id] for one in order}
            if all(len(output.accepted) > 4 for output in outputs.values()):
                ratios.append(_round_s(outputs[True]) / _round_s(outputs[False]))
        ratio, span = median_interval(ratios, seed=0)
        interval = (round(span.low, 3), round(span.high, 3))
        title = f"time per round with a grammar / without, {name}"
        yield Row(title, round(ratio, 3), "<= 1.10", ratio <= 1.10, interval)


def _round_s(output: RequestOutput) -> float:
    return (output.token_times_s[-1] - output.token_times_s[0]) / len(output.accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-dir", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["parse", "peers", "splits", "drafts", "enforced", "speed"])
    parsed = parser.parse_args()
    return print_rows(measure(parsed.env_dir, read_cases(parsed.data), set(parsed.only)))


def measure(env: Path, cases: Sequence[Case], parts: set[str]) -> Iterator[Row]:
    """Yields the rows of the wanted parts."""
    if parts & {"parse", "peers", "splits"}:
        texts = [*template_texts(env / "clients", cases), *library_texts(env / "clients", cases)]
        if "parse" in parts:
            yield from parse_rows(texts)
        texts += [*pythonic_texts(texts), *enforced_texts(cases)]
        if "peers" in parts:
            yield from peer_rows(env, texts)
        if "splits" in parts:
            yield from split_rows(texts)
    if parts & {"drafts", "enforced", "speed"}:
        pair = Pair()
        rows: dict[str, Callable[[Pair, Sequence[Case]], Iterator[Row]]] = {
            "drafts": draft_rows,
            "enforced": enforced_rows,
            "speed": speed_rows,
        }
        for name, function in rows.items():
            if name in parts:
                yield from function(pair, cases)


if __name__ == "__main__":
    sys.exit(main())
