"""Measures an engine in this process with one request at a time. Every prompt runs in both arms, one after the other.

    baseline      Engine(target, ()): no head is loaded, nothing is captured or drafted
    speculative   Engine(target, [draft])

Both arms use the same target object and dtype. An engine without a drafter does not capture aux layers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from eyas.base.progress import Progress
from eyas.bench.config import BenchConfig
from eyas.bench.request_metrics import BASELINE, SPECULATIVE, compare_prompts, find_median
from eyas.bench.slices import Slices
from eyas.bench.turns import conversation_id
from eyas.bench.workload import Prompt, Workload, interleave_tasks, run_paired
from eyas.chat.tool_format import ToolFormat
from eyas.data.select.quality import is_looping_answer
from eyas.drafters.head_spec import HeadSpec
from eyas.engine.counters import EngineCounters
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.evaluation.evaluate import CONFIDENT_PROB
from eyas.evaluation.reference_drafters import NgramDrafter, NgramTable, PromptLookup
from eyas.evaluation.replay import AnswerSpan, replay_answers
from eyas.model.attention import DenseAttention
from eyas.model.target import Target
from eyas.tree.acceptance_length import AcceptanceStats, RequestRounds, join_rounds, summarize

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class PairedAnswers:
    """The answers of both arms to one prompt, from the first repeat.

    `baseline_tpot_ms` and `speculative_tpot_ms` are medians over the repeats; None if the answer has one token.
    """

    prompt: Prompt
    baseline: RequestOutput
    speculative: RequestOutput
    baseline_tpot_ms: float | None
    speculative_tpot_ms: float | None

    @property
    def is_timed(self) -> bool:
        """True if both answers have a TPOT."""
        return self.baseline_tpot_ms is not None and self.speculative_tpot_ms is not None

    @property
    def is_looping(self) -> bool:
        """True if the baseline's answer repeats itself to the end."""
        return is_looping_answer(self.baseline.token_ids)


PairsByTask = dict[str, list[PairedAnswers]]
"""The answers to the prompts of each task."""


@dataclass(frozen=True)
class SingleStreamResults:
    """The results at one stream.

    Attributes:
        tasks: The key `tasks` of results.json. Tasks whose answers all repeat themselves or have one token are omitted.
        rounds: The key `rounds` of results.json: milliseconds of the parts of a round.
        looping: The key `looping` of results.json: metrics of answers that repeat themselves; None if there are none.
        pairs: Task -> all answers.
        calibration: The key `calibration` of results.json: the errors of the probabilities of draft tokens, by source.
        slices: The key `slices` of results.json: figures by turn, context and phase.
    """

    tasks: dict[str, dict[str, Any]]
    rounds: dict[str, float]
    looping: dict[str, Any] | None
    pairs: PairsByTask
    calibration: dict[str, dict[str, float]] = field(default_factory=dict)
    slices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)


def measure_tasks(
    target: Target, draft: HeadSpec, prompts: Workload, config: BenchConfig, progress: bool = True
) -> SingleStreamResults:
    """Measures acceptance and TPOT by task. Raises InputError for a prompt that is too long for the target."""
    units = interleave_tasks({task: [(task, prompt) for prompt in some] for task, some in prompts.items()})
    context = max(len(prompt.ids) for _, prompt in units) + config.max_tokens
    engines = {BASELINE: Engine(target, (), 1, context), SPECULATIVE: Engine(target, [draft], 1, context)}
    # The first forward of a length prepares kernels and memory, so one prompt of each task runs unmeasured.
    for engine in engines.values():
        for prompt in (prompt for some in prompts.values() for prompt in some[:1]):
            generate_one(engine, prompt, min(WARM_UP_TOKENS, config.max_tokens))
        engine.counters.reset()
    with Progress("bench, one stream", len(units) * config.repeats * 2, "answers", enabled=progress) as bar:

        def run(engine: Engine, unit: tuple[str, Prompt]) -> RequestOutput:
            answer = generate_one(engine, unit[1], config.max_tokens)
            bar.advance()
            return answer

        answers = run_paired({name: partial(run, engine) for name, engine in engines.items()}, units, config.repeats)
    pairs: PairsByTask = {task: [] for task in prompts}
    for (task, prompt), baseline, speculative in zip(units, answers[BASELINE], answers[SPECULATIVE], strict=True):
        pairs[task].append(_pair_answers(prompt, baseline, speculative))
    scale = engines[SPECULATIVE].runner.drafters[0].node_scale
    errors = {} if scale is None else {source: asdict(error) for source, error in scale.errors().items()}
    results = _build_results(target, pairs, engines[SPECULATIVE].counters, config.seed)
    found = Slices(ToolFormat(target.tokenizer))
    for arm, of_arm in answers.items():
        for (_, prompt), outputs, baseline in zip(units, of_arm, answers[BASELINE], strict=True):
            if not is_looping_answer(baseline[0].token_ids):
                found.add_outputs(arm, prompt, outputs)
    slices = found.metrics(config.seed, {arm: engine.bytes_per_token for arm, engine in engines.items()})
    return replace(results, calibration=errors, slices=slices)


def generate_one(engine: Engine, prompt: Prompt, max_tokens: int) -> RequestOutput:
    """Returns the greedy answer to a prompt. Clears the prefix cache first; no other request runs."""
    engine.kv_cache.clear_prefix_cache()
    (answer,) = plain_loop(engine, RequestList([Request(prompt.id, prompt.ids, max_tokens)]))
    return answer


@torch.inference_mode()
def count_uncertain(target: Target, prompt: Prompt, token_ids: Sequence[int]) -> int:
    """Counts the tokens of an answer at which the target's top-1 probability is below CONFIDENT_PROB."""
    ids_1T = torch.tensor([[*prompt.ids, *token_ids[:-1]]], device=target.model.device)
    positions_1T = torch.arange(ids_1T.shape[1], device=ids_1T.device)[None]
    hidden_1TD = target.forward(ids_1T, positions_1T, DenseAttention()).hidden_BTD
    logits_TW = target.logits(hidden_1TD[0, len(prompt.ids) - 1 :])
    return int((logits_TW.float().softmax(-1).amax(-1) < CONFIDENT_PROB).sum())


def measure_draft_baselines(
    pairs: PairsByTask, table: NgramTable, depth: int, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """Computes the acceptance length of prompt lookup and of a 4-gram table on the answers of the baseline.

    Args:
        pairs: Task -> answers. Answers that repeat themselves or have one token are left out, as for the head.
        table: The 4-grams of the training answers.
        depth: The most tokens of a draft.
        seed: The seed of the bootstrap.

    Returns:
        Task -> the key `references` of its entry in results.json.
    """
    references: dict[str, dict[str, dict[str, Any]]] = {}
    for task, some in pairs.items():
        if measured := [pair for pair in some if pair.is_timed and not pair.is_looping]:
            texts = [torch.tensor([*pair.prompt.ids, *pair.baseline.token_ids]) for pair in measured]
            answers = [AnswerSpan(i, ids_T, len(measured[i].prompt.ids), len(ids_T)) for i, ids_T in enumerate(texts)]
            drafters = {"prompt_lookup": PromptLookup(texts, depth), "ngram4": NgramDrafter(table, texts, depth)}
            replayed = {name: replay_answers(answers, drafter) for name, drafter in drafters.items()}
            references[task] = {name: _acceptance(summarize(rounds, seed)) for name, rounds in replayed.items()}
    return references


def _pair_answers(
    prompt: Prompt, baseline: Sequence[RequestOutput], speculative: Sequence[RequestOutput]
) -> PairedAnswers:
    return PairedAnswers(prompt, baseline[0], speculative[0], _median_tpot_ms(baseline), _median_tpot_ms(speculative))


def _median_tpot_ms(answers: Sequence[RequestOutput]) -> float | None:
    return find_median(1000 * answer.tpot_s for answer in answers if answer.tpot_s is not None)


def _build_results(target: Target, pairs: PairsByTask, times: EngineCounters, seed: int) -> SingleStreamResults:
    tasks: dict[str, dict[str, Any]] = {}
    for task, some in pairs.items():
        if measured := [pair for pair in some if pair.is_timed and not pair.is_looping]:
            uncertain = sum(count_uncertain(target, pair.prompt, pair.baseline.token_ids) for pair in measured)
            tasks[task] = _task_metrics(measured, seed) | {
                "uncertain_share": uncertain / sum(len(pair.baseline.token_ids) for pair in measured),
                "looping": sum(pair.is_looping for pair in some),
                "too_short": sum(not pair.is_timed for pair in some),
            }
    loops = [pair for some in pairs.values() for pair in some if pair.is_looping]
    seconds = {"draft": times.draft_s, "verify": times.verify_s, "extend": times.extend_s, "other": times.host_s}
    return SingleStreamResults(
        tasks,
        {f"{part}_ms": 1000 * spent / max(times.rounds, 1) for part, spent in seconds.items()},
        _task_metrics(loops, seed) if loops else None,  # a loop has at least 32 tokens, so it has a TPOT
        pairs,
    )


def _task_metrics(pairs: Sequence[PairedAnswers], seed: int) -> dict[str, Any]:
    """Returns an entry of `tasks`. Its `identical` counts the prompts that get the same tokens in both arms."""
    tpot_ms = {
        BASELINE: [pair.baseline_tpot_ms for pair in pairs],
        SPECULATIVE: [pair.speculative_tpot_ms for pair in pairs],
    }
    by_conversation: dict[str, list[RequestRounds]] = {}
    for pair in pairs:
        conversation = conversation_id(pair.prompt.id, pair.prompt.turn)
        by_conversation.setdefault(conversation, []).append(pair.speculative.rounds)
    stats = summarize([join_rounds(some) for some in by_conversation.values()], seed)
    return {
        "prompts": len(pairs),
        **_acceptance(stats),
        **compare_prompts(tpot_ms, seed),
        "by_depth": stats.by_depth,
        "identical": sum(pair.baseline.token_ids == pair.speculative.token_ids for pair in pairs),
    }


def _acceptance(stats: AcceptanceStats) -> dict[str, Any]:
    return {"acceptance_length": stats.acceptance_length, "ci95": [stats.ci95.low, stats.ci95.high]}
