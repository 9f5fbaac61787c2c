"""`eyas bench --url`: measures running servers and writes results.json and report.html.

Every point runs in every arm, block by block, on the same prompts:

    time ->     1st           2nd
    block 0     baseline      speculative      every arm gets the requests of block 0, one arm after the other
    block 1     speculative   baseline         the other arm is first in block 1
"""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from eyas.base.config import flatten_table
from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.base.provenance import package_versions
from eyas.bench import request_metrics
from eyas.bench.client.response_parser import NAMES_STREAM
from eyas.bench.client.server_arms import ServerArm, discover_arms
from eyas.bench.config import ClientConfig
from eyas.bench.load_test import LoadBlock, LoadPlan
from eyas.bench.report import write_results
from eyas.bench.request_metrics import BASELINE, SPECULATIVE, BlockResult
from eyas.bench.results import SCHEMA, describe_machine, redact_location
from eyas.bench.slices import Slices
from eyas.bench.turns import ChatPrompt, Chats
from eyas.bench.workload import interleave_tasks, load_prompts, run_paired


def run(url: str, baseline: str | None, config: ClientConfig, out_dir: Path, progress: bool = True) -> dict[str, Any]:
    """Measures the server, writes results.json and report.html, and returns the content of results.json.

    Args:
        url: The URL of the API of the server to measure, such as http://HOST:8000/v1. If `baseline` is given, this
            server should serve the target with a head.
        baseline: The URL of a second server, which serves the target without a head. None: no second server.
        config: The keys `client.*`.
        out_dir: The directory in which results.json and report.html are written at the end.
        progress: Shows a progress bar.

    Raises:
        EyasError: The prompts or the arms cannot be used.
        StageError: No request was answered; then no file is written. Or a server went down; then results.json and
            report.html hold the results before that.
    """
    bar = Progress("bench", None, "answers", enabled=progress)
    arms = discover_arms(url, baseline, config, bar.advance)
    prompts = load_prompts(config, config.limit, partial(next(iter(arms.values())).ask, config))
    benchmark = ServerBenchmark(config, arms, prompts)
    bar.total = benchmark.num_requests + bar.done  # answers before later turns
    with bar:
        tasks = benchmark.measure_tasks() if config.one_stream else {}
        load = benchmark.plan.measure(benchmark.run_blocks)
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "target": {"name": next(iter(arms.values())).model},
        "tasks": tasks,
        **load,
        "lossless": benchmark.lossless_counts(),
        "slices": benchmark.slices.metrics(config.seed),
        "client": dataclasses.asdict(_public_config(config)),
        "command": reproduce_command(url, baseline, config),
        "versions": package_versions(),
    }
    if not benchmark.num_answered:
        problem = f"No answer to any of {benchmark.num_failed} requests; the first error:"
        raise StageError(f"{problem} {benchmark.first_error or 'none'}", "Check the server's log")
    if benchmark.down is not None:
        results["gone"] = benchmark.down
    write_results(results, None, out_dir)
    if benchmark.down is not None:
        problem = f"A server went down during the measurement ({benchmark.down})"
        raise StageError(problem, f"Check its log; {out_dir / 'report.html'} shows what was measured before")
    return results


def reproduce_command(url: str, baseline: str | None, config: ClientConfig) -> str:
    """Returns the shell command that repeats the run. Leaves out keys with default values and values of URL queries."""
    words = ["eyas", "bench", "--url", redact_location(url)]
    words += [] if baseline is None else ["--baseline", redact_location(baseline)]
    tables = dataclasses.asdict(_public_config(config)), dataclasses.asdict(ClientConfig())
    keys, defaults = (flatten_table(table, "client") for table in tables)
    words += [f"{key}={json.dumps(value)}" for key, value in keys.items() if value != defaults[key]]
    return shlex.join(words)


def _public_config(config: ClientConfig) -> ClientConfig:
    return dataclasses.replace(config, prompts=redact_location(config.prompts))


class ServerBenchmark:
    """One measurement of all arms. It counts requests, and the answers that are identical in both arms.

    Attributes:
        plan: The blocks of requests under load.
        slices: The answers at one stream, by turn and context.
        num_answered: The number of requests that succeeded so far, warm-up requests included.
        num_failed: The number of requests that failed so far, warm-up requests included.
        first_error: The error of the first failed request; "" if none failed.
        down: The name of the arm whose server refuses connections, with the error. None while all servers accept them.
            No request is sent after a server went down.
    """

    def __init__(self, config: ClientConfig, arms: Mapping[str, ServerArm], prompts: Chats) -> None:
        self._config = config
        self._arms = arms
        units = interleave_tasks({task: [(task, prompt) for prompt in some] for task, some in prompts.items()})
        self._tasks = [task for task, _ in units]
        self._pool = [prompt for _, prompt in units]
        self.plan = LoadPlan(self._pool, config)
        self.slices = Slices()
        self._num_compared, self._num_identical = 0, 0
        self.num_answered, self.num_failed, self.first_error = 0, 0, ""
        self.down: str | None = None

    @property
    def num_requests(self) -> int:
        """The number of requests of the whole measurement, warm-up requests included."""
        config = self._config
        single = len(self._pool) * config.repeats if config.one_stream else 0
        warm_ups = (self.plan.num_points + config.one_stream) * config.warm_up
        return len(self._arms) * (self.plan.num_requests + single + warm_ups)

    def measure_tasks(self) -> dict[str, dict[str, Any]]:
        """Sends each prompt alone and returns `tasks` of results.json."""
        blocks = [LoadBlock([prompt], index) for index, prompt in enumerate(self._pool)]
        results = self._run_all(blocks, self._config.repeats)
        for arm, of_arm in results.items():
            for prompt, repeated in zip(self._pool, of_arm, strict=True):
                for sample in (sample for block in repeated for sample in block.succeeded):
                    self.slices.add_sample(arm, prompt, sample)
        metrics: dict[str, dict[str, Any]] = {}
        for task in dict.fromkeys(self._tasks):
            indices = [index for index, name in enumerate(self._tasks) if name == task]
            of_task = {name: [repeats[index] for index in indices] for name, repeats in results.items()}
            if any(blocks for repeats in of_task.values() for blocks in repeats):
                metrics[task] = self._task_metrics(of_task)
        return metrics

    def run_blocks(self, blocks: Sequence[LoadBlock[ChatPrompt]]) -> dict[str, list[BlockResult]]:
        """Returns arm -> results of the blocks that ran in all arms; {} if a server went down in the first block."""
        results = {name: list(chain.from_iterable(some)) for name, some in self._run_all(blocks, 1).items()}
        return results if all(results.values()) else {}

    def lossless_counts(self) -> dict[str, Any]:
        """Returns `lossless` of results.json: the number of answers with the same text in both arms."""
        reference = "the server without speculation, under the same load" if self._num_compared else "none: not checked"
        counts = {"prompts": self._num_compared, "identical": self._num_identical}
        return counts | {"dtype": "as served", "reference": reference}

    def _run_all(self, blocks: Sequence[LoadBlock[ChatPrompt]], repeats: int) -> dict[str, list[list[BlockResult]]]:
        """Sends the warm-up requests to every arm, then all blocks. Returns results[arm][block][repeat]."""
        config = self._config
        arms = {name: partial(self._run_block, name) for name in self._arms}
        for run in arms.values():
            if config.warm_up and self.down is None:
                run(LoadBlock(self.plan.take(0, config.warm_up), 0, blocks[0].streams))
        repeats = repeats if self.down is None else 0
        results = run_paired(arms, blocks, repeats, lambda: self.down is not None)
        if BASELINE in results and config.temperature == 0:
            for before, after in zip(results[BASELINE], results[SPECULATIVE], strict=True):
                compared, identical = request_metrics.count_identical(before[:1], after[:1])
                self._num_compared += compared
                self._num_identical += identical
        return results

    def _run_block(self, name: str, block: LoadBlock[ChatPrompt]) -> BlockResult:
        arm = self._arms[name]
        result = arm.run_block(block, self._config)
        errors = [sample.error for sample in result.samples if sample.error is not None]
        self.num_answered += len(result.succeeded)
        self.num_failed += len(errors)
        self.first_error = self.first_error or next(iter(errors), "")
        if not self.num_answered and self.first_error.endswith(NAMES_STREAM):
            raise StageError(f"The server rejects streams: {self.first_error}", "Set client.stream=false")
        if result.num_unreached and arm.load_generator.is_down():
            self.down = f"{name}: {errors[-1]}"
        return result

    def _task_metrics(self, results: Mapping[str, Sequence[Sequence[BlockResult]]]) -> dict[str, Any]:
        """Returns an entry of `tasks` in results.json. results[arm][prompt][repeat]: a block of one request."""
        seed = self._config.seed
        tpot_ms = {name: [_median_ms(blocks, "tpot_s") for blocks in some] for name, some in results.items()}
        e2e_ms = {name: [_median_ms(blocks, "e2e_s") for blocks in some] for name, some in results.items()}
        with_head = results.get(SPECULATIVE) or next(iter(results.values()))
        acceptance = request_metrics.summarize_acceptance([blocks[0] for blocks in with_head if blocks], seed)
        metrics = {
            "prompts": sum(map(bool, with_head)),
            **request_metrics.compare_prompts(tpot_ms, seed),
            "e2e_ms": request_metrics.arm_medians(e2e_ms),
            **request_metrics.count_requests(block for some in results.values() for blocks in some for block in blocks),
        }
        if acceptance:
            metrics |= {key: acceptance[key] for key in ("acceptance_length", "acceptance_source")}
            metrics["ci95"] = acceptance["acceptance_length_ci95"]
        return metrics


def _median_ms(blocks: Sequence[BlockResult], time: Literal["tpot_s", "e2e_s"]) -> float | None:
    times_s = (getattr(sample, time) for block in blocks for sample in block.succeeded)
    return request_metrics.find_median(1000 * time_s for time_s in times_s if time_s is not None)
