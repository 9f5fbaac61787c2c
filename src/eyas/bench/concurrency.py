"""Under load, in process: n streams, each sends its next request when its last one ends (a closed loop)."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from eyas.base.errors import StageError
from eyas.base.progress import Progress
from eyas.bench.config import OTHER_ARM, BenchConfig
from eyas.bench.measure import BASELINE, SPECULATIVE, WARM_UP_TOKENS
from eyas.bench.stats import median_interval, percentiles
from eyas.bench.workload import Prompt, mixed, paired
from eyas.model.target import Target
from eyas.serve.arm import Arm, default_arms
from eyas.serve.drafter import Draft
from eyas.serve.engine import Engine
from eyas.serve.other_drafters import Lookup, SmallModel
from eyas.serve.policy import OneArm
from eyas.serve.rehearsal import budget_for
from eyas.serve.request import Answer, Request
from eyas.serve.scheduler import Given, plain_loop
from eyas.tree.shape import chain
from eyas.tree.stats import acceptance_length


@dataclass(frozen=True)
class Block:
    """One closed loop over some requests. ttft_s is by answer, from the sending of the request."""

    answers: tuple[Answer, ...]
    ttft_s: tuple[float, ...]
    seconds: float

    @property
    def output_tps(self) -> float:
        """Output tokens per second, from the first request sent to the last token (as SGLang and vLLM count it)."""
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds


def closed_loop(engine: Engine, prompts: Sequence[Prompt], max_tokens: int) -> Block:
    """As many streams as the engine has slots. A request that waits for another one's prefill waits on the clock.

    A stream is free from the end of its answer on; the engine takes up the next request when it comes to it:

        stream   ...answer | sent ..waits.. prefill -> first token
                                            ^ answer.ttft_s begins here; ttft_s of the block begins at "sent"
    """
    engine.forget()
    began_s = time.perf_counter()
    free_s = deque([began_s] * engine.slots)
    waited_s: list[float] = []

    def requests() -> Iterator[Request]:
        for index, prompt in enumerate(prompts):
            waited_s.append(time.perf_counter() - free_s.popleft())
            yield Request(str(index), prompt.ids, max_tokens)

    answers = []
    for answer in plain_loop(engine, Given(requests())):
        free_s.append(time.perf_counter())
        answers.append(answer)
    seconds = time.perf_counter() - began_s
    ttft_s = tuple(waited_s[int(answer.request.id)] + answer.ttft_s for answer in answers)
    return Block(tuple(answers), ttft_s, seconds)


def measure_concurrency(
    target: Target, draft: Draft, prompts: Mapping[str, Sequence[Prompt]], config: BenchConfig, progress: bool = True
) -> list[dict[str, Any]]:
    """`concurrency` of results.json: for each n of the configuration, both arms over the same requests, tasks mixed.

    The speculative arm is what a server runs: the budget decides round by round among trees, chains and off.

    There are `repeats` blocks, each of other requests as far as the prompts reach; a block runs in both arms back to
    back in alternating order. Figures of an arm pool the requests of all blocks, but for output_tps, the median over
    blocks. speedup_tpot is the ratio of the p50s; speedup_tps is the median over blocks of the ratio within a block,
    and its interval a bootstrap over blocks (extra key `blocks`: how many). StageError where no answer has two tokens.
    """
    pool = mixed(prompts)
    context = max(len(prompt.ids) for prompt in pool) + config.max_tokens
    fixed = [arm for arm in default_arms() if arm.name in config.arms]
    others = other_arms(config, target) if config.concurrency else {}
    num_arms = 2 + len(fixed) + len(others)
    total = sum(n * config.requests_per_stream for n in config.concurrency) * config.repeats * num_arms
    points = []
    with Progress("bench, under load", total, "requests", enabled=progress) as bar:
        for n in config.concurrency:
            engines = {BASELINE: Engine(target, None, n, context), SPECULATIVE: auto_engine(target, draft, n, context)}
            engines |= {arm.name: one_arm_engine(target, draft, arm, n, context) for arm in fixed}
            engines |= {name: Engine(target, other, n, context) for name, other in others.items()}
            blocks = _blocks(pool, n * config.requests_per_stream, config.repeats)
            for engine in engines.values():
                closed_loop(engine, blocks[0][:n], min(WARM_UP_TOKENS, config.max_tokens))

            def run(engine: Engine, block: list[Prompt]) -> Block:
                measured = closed_loop(engine, block, config.max_tokens)
                bar.advance(len(block))
                return measured

            arms = {name: lambda block, engine=engine: run(engine, block) for name, engine in engines.items()}
            found = {name: [once for (once,) in rounds] for name, rounds in paired(arms, blocks, 1).items()}
            points.append(point(n, found, config.seed))
    return points


def other_arms(config: BenchConfig, target: Target) -> dict[str, Lookup | SmallModel]:
    """What of `bench.arms` drafts without the head. InputError for a small model that cannot be loaded."""
    found = [match for name in config.arms if (match := OTHER_ARM.fullmatch(name)) is not None]
    model = None
    if config.draft_model is not None and any(match[1] == "model" for match in found):
        model = Target.load(config.draft_model, target.model.dtype, (0,), target.model.device)
    plans: dict[str, Lookup | SmallModel] = {}
    for match in found:
        shape = chain(int(match[2]))
        plans[match[0]] = Lookup(shape) if model is None or match[1] == "lookup" else SmallModel(model, shape)
    return plans


def auto_engine(target: Target, draft: Draft, slots: int, context: int) -> Engine:
    """An engine with a budget; what its rounds cost is measured here and now."""
    arms = default_arms()
    engine = Engine(target, replace(draft, arms=arms), slots, context)
    engine.policy = budget_for(engine, arms, None)
    return engine


def one_arm_engine(target: Target, draft: Draft, arm: Arm, slots: int, context: int) -> Engine:
    """An engine that runs the same arm in every round; off has no head loaded."""
    if arm.shape is None:
        return Engine(target, None, slots, context)
    engine = Engine(target, replace(draft, shape=arm.shape), slots, context)
    engine.policy = OneArm(arm)
    return engine


def point(n: int, found: Mapping[str, Sequence[Block]], seed: int) -> dict[str, Any]:
    """One entry of `concurrency`, from the blocks of each arm; block i of all arms had the same requests."""
    baseline, speculative = found[BASELINE], found[SPECULATIVE]
    ratios = [b.output_tps / a.output_tps for a, b in zip(baseline, speculative, strict=True)]
    speedup, span = median_interval(ratios, seed)
    of = {name: _arm(blocks) | ({} if name == BASELINE else _accepted(blocks)) for name, blocks in found.items()}
    before, after = of.pop(BASELINE), of.pop(SPECULATIVE)
    return {
        "n": n,
        BASELINE: before,
        SPECULATIVE: after,
        "arms": of,
        "speedup_tpot": before["tpot_ms"]["p50"] / after["tpot_ms"]["p50"],
        "speedup_tps": speedup,
        "speedup_tps_ci95": [span.low, span.high],
        "blocks": len(ratios),
    }


def _accepted(blocks: Sequence[Block]) -> dict[str, Any]:
    return {"acceptance_length": acceptance_length(answer.rounds for block in blocks for answer in block.answers)}


def _arm(blocks: Sequence[Block]) -> dict[str, Any]:
    answers = [answer for block in blocks for answer in block.answers]
    tpot_ms = [1000 * answer.tpot_s for answer in answers if answer.tpot_s is not None]
    if not tpot_ms:
        raise StageError(
            f"{len(answers)} answers of one token each",
            "an answer of two tokens at least, for there is no time between tokens otherwise",
            "measure with other prompts",
        )
    return {
        "tpot_ms": percentiles(tpot_ms),
        "ttft_ms": percentiles([1000 * ttft_s for block in blocks for ttft_s in block.ttft_s]),
        "output_tps": median([block.output_tps for block in blocks]),
    }


def _blocks(pool: Sequence[Prompt], size: int, count: int) -> list[list[Prompt]]:
    return [[pool[(block * size + index) % len(pool)] for index in range(size)] for block in range(count)]
