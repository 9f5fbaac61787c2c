"""Under load, in process: streams that each send the next request when the last one ends, or requests at a rate.

The figures are those of `bench.client.summary`, from the same kind of samples: what a client would have seen that costs
nothing and is never late.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.bench.client import http_request_loops as load
from eyas.bench.client.http_request_loops import poisson_arrivals, split_ramp
from eyas.bench.config import OTHER_ARM, BenchConfig
from eyas.bench.engine_request_loops import EngineBlock, run_closed_loop, run_open_loop
from eyas.bench.request_metrics import compare_arms
from eyas.bench.request_metrics import summarize_arm as figures_of
from eyas.bench.single_stream import BASELINE, SPECULATIVE, WARM_UP_TOKENS
from eyas.bench.workload import Prompt, interleave_tasks, run_paired
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.drafters.other_drafters import PromptLookupSpec, SmallModelSpec
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.model.target import Target
from eyas.speculation.arms import Arm, default_arms
from eyas.speculation.policy import FixedArm
from eyas.tree.shape import chain_shape

Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Load:
    """What one block sends. moments_s: an open loop; None: a closed one."""

    prompts: Sequence[Prompt]
    moments_s: Sequence[float] | None = None

    def send(self, engine: Engine, max_tokens: int) -> EngineBlock:
        if self.moments_s is None:
            return run_closed_loop(engine, self.prompts, max_tokens)
        return run_open_loop(engine, self.prompts, self.moments_s, max_tokens)


@dataclass(frozen=True)
class LoadResults:
    """Three keys of results.json."""

    concurrency: Points = ()
    rates: Points = ()
    ramp: Points = ()


def measure_load(
    target: Target,
    draft: Eagle3Spec,
    prompts: Mapping[str, Sequence[Prompt]],
    config: BenchConfig,
    progress: bool = True,
) -> LoadResults:
    """For each number of streams and each rate of the configuration all arms over the same requests, tasks mixed.

    The speculative arm is what a server runs: the budget decides round by round among trees, chains and off. There are
    `repeats` blocks, each of other requests as far as the prompts reach; a block runs in all arms back to back in
    rotated order (see `client.summary` for the figures). StageError where no answer has two tokens.
    """
    pool = interleave_tasks(prompts)
    context = max(len(prompt.ids) for prompt in pool) + config.max_tokens
    streams = [(n, list(_closed(pool, n, config))) for n in config.concurrency]
    rates = [(rate, list(_open(pool, (rate, rate), config))) for rate in config.rates]
    ramp = list(_open(pool, config.ramp, config)) if config.ramp is not None else []
    if not (streams or rates or ramp):
        return LoadResults()
    fixed = [arm for arm in default_arms() if arm.name in config.arms]
    others = headless_drafters(config, target)

    def engines(slots: int) -> dict[str, Engine]:
        found = {BASELINE: Engine(target, None, slots, context)}
        found[SPECULATIVE] = build_auto_engine(target, draft, slots, context)
        found |= {arm.name: build_fixed_arm_engine(target, draft, arm, slots, context) for arm in fixed}
        return found | {name: Engine(target, other, slots, context) for name, other in others.items()}

    loads = [*(one for _, some in streams + rates for one in some), *ramp]
    total = sum(len(one.prompts) for one in loads) * (2 + len(fixed) + len(others))
    with Progress("bench, under load", total, "requests", enabled=progress) as bar:
        closed = [{"n": n} | build_point(_measured(engines(n), some, config, bar), config) for n, some in streams]
        opening = engines(max(config.concurrency, default=8)) if rates or ramp else {}
        opened = [{"rate": rate} | build_point(_measured(opening, some, config, bar), config) for rate, some in rates]
        growing = _quarters(opening, ramp, config, bar) if ramp else []
    return LoadResults(closed, opened, growing)


def _closed(pool: Sequence[Prompt], n: int, config: BenchConfig) -> Iterator[_Load]:
    size = n * config.requests_per_stream
    for block in range(config.repeats):
        yield _Load(_some(pool, block * size, size))


def _open(pool: Sequence[Prompt], rates: tuple[float, float], config: BenchConfig) -> Iterator[_Load]:
    start = 0
    for block in range(config.repeats):
        moments_s = poisson_arrivals(*rates, config.block_s, config.seed + block)
        yield _Load(_some(pool, start, len(moments_s)), moments_s)
        start += len(moments_s)


def _some(pool: Sequence[Prompt], start: int, count: int) -> list[Prompt]:
    return [pool[(start + index) % len(pool)] for index in range(count)]


def _measured(
    engines: Mapping[str, Engine], loads: Sequence[_Load], config: BenchConfig, bar: Progress
) -> dict[str, list[load.BlockResult]]:
    """By arm and block, as a client would have seen them; every engine is warmed up first."""
    for engine in engines.values():
        run_closed_loop(engine, loads[0].prompts[: engine.max_running], min(WARM_UP_TOKENS, config.max_tokens))

    def run(name: str, one: _Load) -> load.BlockResult:
        block = one.send(engines[name], config.max_tokens)
        bar.advance(len(one.prompts))
        return block.to_block_result(drafts=name != BASELINE)

    arms = {name: lambda one, name=name: run(name, one) for name in engines}
    return {name: [once for (once,) in blocks] for name, blocks in run_paired(arms, loads, 1).items()}


def _quarters(engines: Mapping[str, Engine], ramp: Sequence[_Load], config: BenchConfig, bar: Progress) -> Points:
    assert config.ramp is not None, "there are loads of it"
    moments_s = [one.moments_s or () for one in ramp]
    cut = split_ramp(_measured(engines, ramp, config, bar), moments_s, config.ramp, config.block_s)
    return [{"rate": rate} | build_point(blocks, config) for rate, blocks in cut]


def headless_drafters(config: BenchConfig, target: Target) -> dict[str, PromptLookupSpec | SmallModelSpec]:
    """What of `bench.arms` drafts without the head. InputError for a small model that cannot be loaded."""
    found = [match for name in config.arms if (match := OTHER_ARM.fullmatch(name)) is not None]
    model = None
    if config.draft_model is not None and any(match[1] == "model" for match in found):
        model = Target.load(config.draft_model, target.model.dtype, (0,), target.model.device)
    plans: dict[str, PromptLookupSpec | SmallModelSpec] = {}
    for match in found:
        shape = chain_shape(int(match[2]))
        plans[match[0]] = (
            PromptLookupSpec(shape) if model is None or match[1] == "lookup" else SmallModelSpec(model, shape)
        )
    return plans


def build_auto_engine(target: Target, draft: Eagle3Spec, slots: int, context: int) -> Engine:
    """An engine with a budget; what its rounds cost is measured here and now."""
    arms = default_arms()
    engine = Engine(target, replace(draft, arms=arms), slots, context)
    engine.policy = build_budget(engine, arms, None)
    return engine


def build_fixed_arm_engine(target: Target, draft: Eagle3Spec, arm: Arm, slots: int, context: int) -> Engine:
    """An engine that runs the same arm in every round; off has no head loaded."""
    if arm.shape is None:
        return Engine(target, None, slots, context)
    engine = Engine(target, replace(draft, shape=arm.shape), slots, context)
    engine.policy = FixedArm(arm)
    return engine


def build_point(found: Mapping[str, Sequence[load.BlockResult]], config: BenchConfig) -> dict[str, Any]:
    """One entry of results.json, from the blocks of each arm; block i of all arms had the same requests."""
    of = {name: figures_of(blocks, config.slo, config.seed) for name, blocks in found.items()}
    before, after = of.pop(BASELINE), of.pop(SPECULATIVE)
    if "tpot_ms" not in before:
        raise StageError(
            f"{before['completed']} answers of one token each",
            "an answer of two tokens at least, for there is no time between tokens otherwise",
            "measure with other prompts",
        )
    both = compare_arms(found[BASELINE], found[SPECULATIVE], config.seed)
    return {BASELINE: before, SPECULATIVE: after, "arms": of} | both
