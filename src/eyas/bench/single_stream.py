"""One stream, in process: every prompt in both arms back to back, on the same target, runner, dtype and threads.

    baseline      Engine(target, None): no head is attached, nothing is captured or drafted
    speculative   Engine(target, draft)

The target is one object: without a drafter the engine does not ask it for the captured layers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from eyas.base.progress import Progress
from eyas.bench.config import BenchConfig
from eyas.bench.workload import Prompt, interleave_tasks, run_paired
from eyas.data.answers.repetition import is_looping
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.engine.sequences import EngineCounters
from eyas.evaluation.evaluate import CONFIDENT_PROB
from eyas.model.attention import DenseAttention
from eyas.model.target import Target
from eyas.tree.stats import median_interval, summarize

BASELINE, SPECULATIVE = "baseline", "speculative"
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class PairedAnswers:
    """One prompt in both arms. The answers are those of the first round; the times are medians over the rounds."""

    prompt: Prompt
    baseline: RequestOutput
    speculative: RequestOutput
    baseline_tpot_ms: float | None  # None: an answer of one token
    speculative_tpot_ms: float | None

    @property
    def is_timed(self) -> bool:
        """Whether both answers have a TPOT."""
        return self.baseline_tpot_ms is not None and self.speculative_tpot_ms is not None

    @property
    def is_looping(self) -> bool:
        """Whether the baseline's answer got stuck."""
        return is_looping(self.baseline.token_ids)


@dataclass(frozen=True)
class SingleStreamResults:
    """tasks, rounds and looping as they stand in results.json; pairs by task for what else is derived from them.

    A task all of whose answers loop or have one token is in `pairs` only: it has no figures.
    """

    tasks: dict[str, dict[str, Any]]
    rounds: dict[str, float]
    looping: dict[str, Any] | None
    pairs: dict[str, list[PairedAnswers]]


def measure_tasks(
    target: Target,
    draft: Eagle3Spec,
    prompts: Mapping[str, Sequence[Prompt]],
    config: BenchConfig,
    progress: bool = True,
) -> SingleStreamResults:
    """Acceptance and TPOT by task, `prompts` as given. InputError for a prompt that does not fit into the target."""
    units = interleave_tasks({task: [(task, prompt) for prompt in some] for task, some in prompts.items()})
    context = max(len(prompt.ids) for _, prompt in units) + config.max_tokens
    engines = {BASELINE: Engine(target, None, 1, context), SPECULATIVE: Engine(target, draft, 1, context)}
    # The first forward of a length prepares kernels and memory: one prompt of each task runs before the clock does.
    for engine in engines.values():
        for some in prompts.values():
            for prompt in some[:1]:
                generate_one(engine, prompt, min(WARM_UP_TOKENS, config.max_tokens))
        engine.counters = EngineCounters()
    with Progress("bench, one stream", len(units) * config.repeats * 2, "answers", enabled=progress) as bar:

        def run(engine: Engine, unit: tuple[str, Prompt]) -> RequestOutput:
            answer = generate_one(engine, unit[1], config.max_tokens)
            bar.advance()
            return answer

        arms = {name: lambda unit, engine=engine: run(engine, unit) for name, engine in engines.items()}
        found = run_paired(arms, units, config.repeats)
    by_task: dict[str, list[PairedAnswers]] = {task: [] for task in prompts}
    for (task, prompt), baseline, speculative in zip(units, found[BASELINE], found[SPECULATIVE], strict=True):
        by_task[task].append(_pair_answers(prompt, baseline, speculative))
    return _build_results(target, by_task, engines[SPECULATIVE].counters, config.seed)


def generate_one(engine: Engine, prompt: Prompt, max_tokens: int) -> RequestOutput:
    """One greedy answer, alone in the engine, its prompt computed anew."""
    engine.clear_prefix_cache()
    (answer,) = plain_loop(engine, RequestList([Request(prompt.id, prompt.ids, max_tokens)]))
    return answer


@torch.inference_mode()
def count_uncertain(target: Target, prompt: Prompt, token_ids: Sequence[int]) -> int:
    """Positions of the answer where the target's likeliest token has less than 0.9; one forward over the whole text."""
    ids_1T = torch.tensor([[*prompt.ids, *token_ids[:-1]]], device=target.model.device)
    positions_1T = torch.arange(ids_1T.shape[1], device=ids_1T.device)[None]
    hidden_1TD = target.forward(ids_1T, positions_1T, DenseAttention()).hidden_BTD
    logits_TW = target.logits(hidden_1TD[0, len(prompt.ids) - 1 :])
    return int((logits_TW.float().softmax(-1).amax(-1) < CONFIDENT_PROB).sum())


def _pair_answers(
    prompt: Prompt, baseline: Sequence[RequestOutput], speculative: Sequence[RequestOutput]
) -> PairedAnswers:
    return PairedAnswers(prompt, baseline[0], speculative[0], _tpot_ms(baseline), _tpot_ms(speculative))


def _tpot_ms(answers: Sequence[RequestOutput]) -> float | None:
    values = [1000 * answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return median(values) if values else None


def _build_results(
    target: Target, by_task: dict[str, list[PairedAnswers]], times: EngineCounters, seed: int
) -> SingleStreamResults:
    tasks: dict[str, dict[str, Any]] = {}
    stuck: list[PairedAnswers] = []
    for task, pairs in by_task.items():
        counts = Counter(looping=sum(pair.is_looping for pair in pairs), too_short=sum(not p.is_timed for p in pairs))
        stuck += [pair for pair in pairs if pair.is_looping]
        if good := [pair for pair in pairs if pair.is_timed and not pair.is_looping]:
            tasks[task] = _task_metrics(good, seed) | {
                "uncertain_share": _uncertain_share(target, good),
                "looping": counts["looping"],
                "too_short": counts["too_short"],
            }
    rounds = max(times.rounds, 1)
    seconds = {"draft": times.draft_s, "verify": times.verify_s, "extend": times.extend_s, "other": times.host_s}
    return SingleStreamResults(
        tasks,
        {f"{part}_ms": 1000 * spent / rounds for part, spent in seconds.items()},
        _task_metrics(stuck, seed) if stuck else None,  # a loop has 32 tokens at least, so it is timed
        by_task,
    )


def _task_metrics(pairs: Sequence[PairedAnswers], seed: int) -> dict[str, Any]:
    """tpot_ms: medians over prompts. speedup: median over prompts of baseline / speculative TPOT of the same prompt,
    its interval by bootstrap over prompts. identical: prompts with the same tokens in both arms, in this dtype."""
    baseline = [pair.baseline_tpot_ms for pair in pairs if pair.baseline_tpot_ms is not None]
    speculative = [pair.speculative_tpot_ms for pair in pairs if pair.speculative_tpot_ms is not None]
    speedup, span = median_interval([a / b for a, b in zip(baseline, speculative, strict=True)], seed)
    stats = summarize([pair.speculative.rounds for pair in pairs], seed)
    return {
        "prompts": len(pairs),
        "acceptance_length": stats.acceptance_length,
        "ci95": [stats.ci95.low, stats.ci95.high],
        "tpot_ms": {BASELINE: median(baseline), SPECULATIVE: median(speculative)},
        "speedup": speedup,
        "speedup_ci95": [span.low, span.high],
        "by_depth": [depth.rate for depth in stats.by_depth],
        "identical": sum(pair.baseline.token_ids == pair.speculative.token_ids for pair in pairs),
    }


def _uncertain_share(target: Target, pairs: Sequence[PairedAnswers]) -> float:
    uncertain = sum(count_uncertain(target, pair.prompt, pair.baseline.token_ids) for pair in pairs)
    return uncertain / sum(len(pair.baseline.token_ids) for pair in pairs)
