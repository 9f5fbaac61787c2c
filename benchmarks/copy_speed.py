"""Output tokens per second of an engine that copies earlier text, over the same engine without copies.

    python benchmarks/copy_speed.py [--target DIR --head DIR] [--prompts FILE | --copied SEED | --forced DIR]
                                    [--streams N ...] [--blocks N] [--dtype float32|bfloat16] [--max-tokens N]

Both engines run in this process with `auto`. A block is the prompts of one task; the engines take turns, in rotated
order. Each engine first runs a block that is not measured. Copies come from the request's own text only, so a block
that was seen before helps no later one. --copied measures edits and tool loops that copied_texts.py makes of another
seed than those that gsm8k_target.py teaches to its target. --forced reads EditEval and HumanEvalFix from DIR and makes
every token that of the reference answer: drafts, forwards and their seconds are real, the target's choices are not. So
it shows what copies bring for a target that edits well.

Prints one JSON object for each task and number of streams: the ratio, and the share of output tokens that were copied.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from copied_texts import edits, tool_loops
from gsm8k_target import EDIT_CHARS, read_functions
from result_rows import Row, print_rows
from torch import Tensor

from eyas.bench.config import BenchConfig
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import BUILTIN, ChatPrompt, Prompt, load_workload, tokenize_prompts
from eyas.chat.conversation import Message
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.heads import draft_with
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.engine.request import Request
from eyas.engine.sampler import SamplerBatch
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head, resolve_head
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.speculation.arms import default_arms
from eyas.speculation.copy_index import CopyFinder
from eyas.tree.intervals import median_interval
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree

LEAST = {"edits": 1.3, "tool loops": 1.3, "EditEval, forced": 1.3, "HumanEvalFix, forced": 1.3}
OTHERS = 0.99
LONGEST = 1_000  # tokens of a forced prompt
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Forced:
    """Reference answers by prompt, to which an engine is forced."""

    answers: Mapping[tuple[int, ...], Sequence[int]]

    def on(self, engine: Engine) -> Engine:
        """Makes the engine generate the reference answers, and returns it."""
        sampler, slots = engine.runner.sampler, engine.runner.pool.req_to_token_RC
        texts_RC = torch.zeros(slots.shape[0], slots.shape[1] * 2, dtype=torch.int64)
        admit, next_first, next_nodes = sampler.admit, sampler.next_B, sampler.next_BM

        def force(req_slot: int, request: Request, text: Sequence[int]) -> None:
            known = torch.tensor([*request.prompt_ids, *self.answers[request.prompt_ids]])
            texts_RC[req_slot, : len(known)] = known
            admit(req_slot, request, text)

        def first(logits_BW: Tensor, batch: SamplerBatch, positions_B: Tensor) -> Tensor:
            next_first(logits_BW, batch, positions_B)
            return texts_RC[batch.req_slots_B, positions_B]

        def nodes(
            logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, batch: SamplerBatch, lengths_B: Tensor
        ) -> Tensor:
            next_nodes(logits_TW, tree, rows_T, batch, lengths_B)
            return texts_RC[batch.req_slots_B[:, None], lengths_B[:, None] + 1 + tree.depths_BM]

        sampler.admit, sampler.next_B, sampler.next_BM = force, first, nodes
        return engine


def forced_tasks(place: Path, target: Target, count: int, max_tokens: int) -> tuple[dict[str, list[Prompt]], Forced]:
    """Returns edits of EditEval and HumanEvalFix, and their reference answers of exactly `max_tokens` tokens."""
    keys = {"EditEval, forced": ("editeval.jsonl", "input", "output")}
    keys["HumanEvalFix, forced"] = ("humanevalfix.jsonl", "before", "after")
    tasks: dict[str, list[Prompt]] = {}
    answers: dict[tuple[int, ...], Sequence[int]] = {}
    for task, (name, before, after) in keys.items():
        found = [json.loads(line) for line in (place / name).read_text(encoding="utf-8").splitlines()]
        random.Random(0).shuffle(found)
        asked = {task: [_ask(f"{one['instruction']}\n{one[before]}") for one in found]}
        tasks[task] = []
        for one, prompt in zip(found, tokenize_prompts(asked, target.tokenizer)[task], strict=True):
            told = target.tokenizer.encode(one[after], add_special_tokens=False)
            if len(told) >= max_tokens and len(prompt.ids) < LONGEST and len(tasks[task]) < count:
                tasks[task].append(prompt)
                answers[tuple(prompt.ids)] = told
    return tasks, Forced(answers)


def _ask(text: str) -> ChatPrompt:
    return ChatPrompt(text[:20], (Message("user", text),))


def build(target: Target, draft: HeadSpec, streams: int, context: int, cache: Path, copies: bool) -> Engine:
    """Returns an engine with a fresh budget."""
    arms = default_arms(draft.head.config.max_depth)
    finder = CopyFinder(0) if copies else None
    engine = Engine(target, [replace(draft, arms=arms)], streams, context, copies=finder)
    engine.policies[0] = build_budget(engine, arms, cache)
    return engine


def measure(
    engines: Mapping[str, Engine], prompts: Sequence[Prompt], blocks: int, max_tokens: int
) -> tuple[list[float], list[float], float]:
    """Returns the ratios of blocks, those of the seconds, and the share of copied tokens."""
    names, ratios = list(engines), []
    for engine in engines.values():
        run_closed_loop(engine, prompts, max_tokens)
    engines["copies"].counters.reset()
    accepted: dict[str, list[float]] = {name: [] for name in names}
    for number in range(blocks):
        speeds = {}
        for name in names[number % 2 :] + names[: number % 2]:
            result = run_closed_loop(engines[name], prompts, max_tokens).result
            speeds[name] = result.output_tokens / result.seconds
            accepted[name].append(speeds[name])
        ratios.append(speeds["copies"] / speeds["head"])
        print(f"block {number + 1}: {speeds}", file=sys.stderr, flush=True)
    counters = engines["copies"].counters
    return ratios, accepted["copies"], counters.copied_tokens / max(counters.output_tokens, 1)


def tasks_of(parsed: argparse.Namespace, target: Target) -> dict[str, list[Prompt]]:
    """Returns task -> prompts."""
    if parsed.copied is None:
        config = BenchConfig(prompts=parsed.prompts, prompts_per_task=parsed.count, max_tokens=parsed.max_tokens)
        return load_workload(config, None, target)[0]
    functions = [code for _, code in read_functions() if len(code) <= EDIT_CHARS]
    pairs = {
        "edits": edits(functions, parsed.copied, parsed.count),
        "tool loops": tool_loops(parsed.copied, parsed.count),
    }
    asked = {task: [_ask(request) for request, _ in found] for task, found in pairs.items()}
    return tokenize_prompts(asked, target.tokenizer)


def rows(parsed: argparse.Namespace, cache: Path) -> Iterator[Row]:
    """Yields a row for each task and number of streams."""
    dtype = DTYPES[parsed.dtype]
    stored = read_head(resolve_head(parsed.head), dtype)
    target = Target.load(parsed.target, dtype, stored.config.aux_layer_ids)
    require_fit(stored, target.info, target.digest)
    draft = draft_with(target.model.device, stored, TreeShape(6, 4, 16))
    if parsed.compile:
        compile_pair(target, draft.head.compilable)
    forced = None
    if parsed.forced is not None:
        tasks, forced = forced_tasks(parsed.forced, target, parsed.count, parsed.max_tokens)
    else:
        tasks = tasks_of(parsed, target)
    context = max(len(prompt.ids) for prompts in tasks.values() for prompt in prompts) + parsed.max_tokens
    for streams in parsed.streams:
        engines = {
            name: build(target, draft, streams, context, cache, copies=name == "copies") for name in ("head", "copies")
        }
        if forced is not None:
            engines = {name: forced.on(engine) for name, engine in engines.items()}
        for task, prompts in tasks.items():
            ratios, _, share = measure(engines, prompts, parsed.blocks, parsed.max_tokens)
            median, span = median_interval(ratios, seed=0)
            least = LEAST.get(task, OTHERS)
            name = f"copies over the head alone, {task}, {streams} streams ({share:.0%} copied)"
            print(engines["copies"].counters.rounds_by_arm, file=sys.stderr)
            yield Row(name, round(median, 3), f"at least {least}", median >= least, (span.low, span.high))


def main() -> int:
    """Measures and prints all rows. Returns 1 if a row misses its target, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=EMBEDDED)
    parser.add_argument("--head", default=EMBEDDED)
    parser.add_argument("--prompts", default=BUILTIN)
    parser.add_argument("--copied", type=int, metavar="SEED")
    parser.add_argument("--forced", type=Path, metavar="DIR")
    parser.add_argument("--count", type=int, default=8, help="prompts of a task")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bfloat16")
    parser.add_argument("--compile", action="store_true")
    parsed = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        code = print_rows(rows(parsed, Path(directory)))
    print(f"{time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
