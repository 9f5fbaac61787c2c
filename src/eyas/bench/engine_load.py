"""Measures an engine in this process under load. `eyas bench RECIPE` calls it.

Arms: the baseline without speculation, speculation as in `eyas serve --copies off`, and the arms of `bench.arms`. The
metrics are the same as for a server over HTTP, but without the time of HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.bench.config import HEADLESS_ARM, BenchConfig
from eyas.bench.engine_request_loops import run_closed_loop, run_open_loop
from eyas.bench.load_test import LoadBlock, LoadPlan, LoadResults
from eyas.bench.request_metrics import BASELINE, SPECULATIVE, BlockResult
from eyas.bench.single_stream import WARM_UP_TOKENS
from eyas.bench.workload import Prompt, Workload, interleave_tasks, run_paired
from eyas.drafters.head_spec import HeadSpec
from eyas.drafters.small_model import SmallModelSpec
from eyas.engine.cost_profiler import build_budget
from eyas.engine.engine import Engine
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm, default_arms
from eyas.speculation.batch_load import FixedArm
from eyas.speculation.copy_index import CopyFinder
from eyas.tree.shape import chain_shape

DEFAULT_SLOTS = 8  # slots for `bench.rates` and `bench.ramp` if `bench.concurrency` is empty


def measure_load(
    target: Target, draft: HeadSpec, prompts: Workload, config: BenchConfig, progress: bool = True
) -> LoadResults:
    """Measures every load of the configuration in all arms.

    In the speculative arm, the budget chooses a tree, a chain or no drafting in every round, as in `eyas serve --copies
    off`. Each block of requests runs in all arms, one arm after the other, in rotated order.

    Raises:
        StageError: Every answer of the baseline has only one token, so there is no TPOT.
        InputError: The small model of an arm cannot be loaded.
    """
    pool = interleave_tasks(prompts)
    plan = LoadPlan(pool, config)
    if not plan.num_points:
        return plan.measure(lambda blocks: {})
    context = max(len(prompt.ids) for prompt in pool) + config.max_tokens
    fixed = [arm for arm in default_arms(draft.head.config.max_depth) if arm.name in config.arms]
    headless = headless_engines(config, target)

    def build_engines(slots: int) -> dict[str, Engine]:
        engines = {BASELINE: Engine(target, (), slots, context)}
        engines[SPECULATIVE] = build_auto_engine(target, draft, slots, context)
        engines |= {arm.name: build_fixed_arm_engine(target, draft, arm, slots, context) for arm in fixed}
        return engines | {name: build(slots, context) for name, build in headless.items()}

    @cache
    def open_loop_engines() -> dict[str, Engine]:
        return build_engines(max(config.concurrency, default=DEFAULT_SLOTS))

    def run(blocks: Sequence[LoadBlock[Prompt]]) -> dict[str, list[BlockResult]]:
        engines = build_engines(blocks[0].streams) if blocks[0].arrivals_s is None else open_loop_engines()
        return _run_blocks(engines, blocks, config.max_tokens, bar)

    total = plan.num_requests * (2 + len(fixed) + len(headless))
    with Progress("bench, under load", total, "requests", enabled=progress) as bar:
        return plan.measure(run)


def _run_blocks(
    engines: Mapping[str, Engine], blocks: Sequence[LoadBlock[Prompt]], max_tokens: int, bar: Progress
) -> dict[str, list[BlockResult]]:
    """Runs warm-up requests on every engine, then all blocks. Returns arm -> results of the blocks."""
    for engine in engines.values():
        run_closed_loop(engine, blocks[0].prompts[: engine.max_running], min(WARM_UP_TOKENS, max_tokens))

    def run(engine: Engine, block: LoadBlock[Prompt]) -> BlockResult:
        if block.arrivals_s is None:
            measured = run_closed_loop(engine, block.prompts, max_tokens)
        else:
            measured = run_open_loop(engine, block.prompts, block.arrivals_s, max_tokens)
        bar.advance(len(block.prompts))
        return measured.result

    paired = run_paired({name: partial(run, engine) for name, engine in engines.items()}, blocks, 1)
    results = {name: [result for (result,) in repeats] for name, repeats in paired.items()}
    require_tpot(results[BASELINE])
    return results


def require_tpot(blocks: Sequence[BlockResult]) -> None:
    """Raises StageError if no answer has two tokens or more, because TPOT needs two."""
    if all(sample.tpot_s is None for block in blocks for sample in block.samples):
        raise StageError("Every answer has one token, so there is no time per output token", "Use other bench.prompts")


def headless_engines(config: BenchConfig, target: Target) -> dict[str, Callable[[int, int], Engine]]:
    """Returns, for each of `bench.arms` that needs no head, the function that builds its engine.

    The arguments of such a function are those of `build_copy_engine` after the target.

    Raises:
        InputError: The small model cannot be loaded.
    """
    engines: dict[str, Callable[[int, int], Engine]] = {}
    model = None
    for match in filter(None, map(HEADLESS_ARM.fullmatch, config.arms)):
        name, depth = match.group(0, 2)
        if depth is None:
            engines[name] = partial(build_copy_engine, target)
        else:
            assert config.draft_model is not None, "BenchConfig requires it"
            model = model or Target.load(config.draft_model, target.model.dtype, (0,), target.model.device)
            engines[name] = partial(Engine, target, [SmallModelSpec(model, chain_shape(int(depth)))])
    return engines


def build_copy_engine(target: Target, slots: int, context: int) -> Engine:
    """Returns an engine without a head that drafts copies of earlier text where they pay."""
    engine = Engine(target, (), slots, context, copies=CopyFinder(0))
    engine.policies[0] = build_budget(engine, (OFF,), None)
    return engine


def build_auto_engine(
    target: Target, draft: HeadSpec, slots: int, context: int, copies: CopyFinder | None = None
) -> Engine:
    """Returns an engine whose budget chooses the arm of each round. Measures the costs of rounds before it returns.

    Args:
        target: The target.
        draft: The head.
        slots: The number of requests that run at once.
        context: The maximum number of tokens of a request.
        copies: Finds copies of earlier text; None to draft with the head only.
    """
    arms = default_arms(draft.head.config.max_depth)
    engine = Engine(target, [replace(draft, arms=arms)], slots, context, copies=copies)
    engine.policies[0] = build_budget(engine, arms, None)
    return engine


def build_fixed_arm_engine(target: Target, draft: HeadSpec, arm: Arm, slots: int, context: int) -> Engine:
    """Returns an engine that runs the same arm in every round. With the arm `off` it has no head."""
    if arm.shape is None:
        return Engine(target, (), slots, context)
    engine = Engine(target, [replace(draft, shape=arm.shape)], slots, context)
    engine.policies[0] = FixedArm(arm)
    return engine
