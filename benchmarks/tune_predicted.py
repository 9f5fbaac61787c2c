"""Compares the tokens per second that `eyas tune` predicts with those of the engine.

    python benchmarks/tune_predicted.py RUN [--processor-time]

RUN is a finished run directory with features and head. The script uses its target in bfloat16 without compiled
forwards, and its held-out answers. Like the prediction, the measurement contains only the rounds, without prefills and
without the time between requests. --processor-time counts processor time, for a machine on which other work runs.
Prints one JSON object for each tree and number of streams. Takes minutes.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from worker_stream import TimedStream

from eyas.base.config import build, load_toml
from eyas.bench import tune
from eyas.bench.config import BenchConfig, TuneConfig
from eyas.bench.engine_request_loops import run_closed_loop
from eyas.bench.workload import interleave_tasks, load_workload
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.device_stream import stream_for
from eyas.engine.engine import Engine
from eyas.engine.request import RequestOutput
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.recipe import Recipe, Run
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import FixedArm
from eyas.tree.shape import TreeShape, chain_shape

STREAMS = (1, 4)
CONFIG = TuneConfig(streams=STREAMS, top_k=(1, 4), nodes=(8, 16, 32), allowance_s=40.0)
ARMS = (OFF, *(Arm(f"chain {depth}", chain_shape(depth)) for depth in (1, 3)))
ARMS += tuple(Arm(f"tree {d}, 4, {n}", TreeShape(d, 4, n)) for d, n in ((4, 8), (6, 16), (7, 32)))
PROMPTS_PER_TASK = 2
PASSES = {1: 1, 4: 2}  # streams -> passes over the prompts; at the end of a pass some streams are idle


def compare_predictions(run: Run, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each tree and number of streams."""
    target, directory = run.target, run.storage_path("capture")
    answers = tune.read_rows(CONFIG, Features(directory), target, True, "tune, trees")
    accepted, _ = tune.measure_acceptance(CONFIG, [read_head(run.head_directory, torch.float32)], answers, target)
    lengths = {one.shape: one.acceptance_length for one in accepted[0]}
    stored = read_head(run.head_directory, target.model.dtype)
    costs = tune.RoundCosts.measure(CONFIG, [stored], target, True)
    prompts = interleave_tasks(load_workload(BenchConfig(prompts_per_task=PROMPTS_PER_TASK), directory, target)[0])
    room = max(len(prompt.ids) for prompt in prompts) + max_tokens
    for streams in STREAMS:
        off: tuple[float, float] | None = None
        for arm in ARMS:
            length = 1.0 if arm.shape is None else lengths[arm.shape]
            stream = TimedStream(stream_for(target.model.device))
            draft = Eagle3Spec(stored.head, stored.vocab, chain_shape(1), ARMS)
            engine = Engine(target, [draft], streams, room, stream=stream)
            engine.policies[0] = FixedArm(arm)
            run_closed_loop(engine, prompts[:streams], 8)
            engine.counters.reset()
            before_s = stream.round_s
            answers = run_closed_loop(engine, prompts * PASSES[streams], max_tokens).answers
            tokens = engine.counters.output_tokens - len(answers)  # the first token of an answer comes from the prefill
            context = round(sum(_context(answer) for answer in answers) / tokens)
            predicted_tps = streams * length / costs.seconds(arm.shape, streams, context)
            measured_tps = tokens / (stream.round_s - before_s + engine.counters.host_s)
            off = (predicted_tps, measured_tps) if off is None else off
            yield {
                "streams": streams,
                "tree": arm.name,
                "accepted": {"predicted": length, "measured": tokens / sum(len(a.accepted) for a in answers)},
                "tps": {"predicted": predicted_tps, "measured": measured_tps},
                "faster": {"predicted": predicted_tps / off[0], "measured": measured_tps / off[1]},
            }


def _context(answer: RequestOutput) -> float:
    """Returns the sum of the context lengths of all tokens that come from rounds."""
    count = len(answer.token_ids) - 1
    return count * (len(answer.request.prompt_ids) + count / 2)


def main() -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--processor-time", action="store_true")
    parsed = parser.parse_args()
    if parsed.processor_time:
        time.perf_counter = time.process_time
    recipe = build(Recipe, load_toml(parsed.run / "recipe.toml"))
    for row in compare_predictions(Run(recipe, parsed.run), recipe.respond.max_tokens):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
