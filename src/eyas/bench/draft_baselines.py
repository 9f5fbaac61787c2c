"""What drafters without a network reach on the very answers that the head was measured on."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eyas.bench.single_stream import PairedAnswers
from eyas.evaluation.reference_drafters import NgramDrafter, NgramTable, PromptLookup
from eyas.evaluation.replay import AnswerSpan, ReplayDrafter, replay_answers
from eyas.tree.stats import summarize


def measure_draft_baselines(
    pairs: Mapping[str, Sequence[PairedAnswers]], table: NgramTable, depth: int, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """By task and drafter: {"acceptance_length", "ci95"}, as `references` of a task holds them.

    The answers are the baseline's, and those that count for the head: timed, and not stuck in a loop. depth: the
    longest chain that is proposed.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task, some in pairs.items():
        good = [pair for pair in some if pair.is_timed and not pair.is_looping]
        if good:
            texts = [torch.tensor([*pair.prompt.ids, *pair.baseline.token_ids]) for pair in good]
            starts = [len(pair.prompt.ids) for pair in good]
            drafters: dict[str, ReplayDrafter] = {
                "prompt_lookup": PromptLookup(texts, depth),
                "ngram4": NgramDrafter(table, texts, depth),
            }
            found[task] = {name: _walked(texts, starts, drafter, seed) for name, drafter in drafters.items()}
    return found


def _walked(texts: Sequence[Tensor], starts: Sequence[int], drafter: ReplayDrafter, seed: int) -> dict[str, Any]:
    spans = enumerate(zip(texts, starts, strict=True))
    answers = [AnswerSpan(index, ids_T, start, len(ids_T)) for index, (ids_T, start) in spans]
    stats = summarize(replay_answers(answers, drafter), seed)
    return {"acceptance_length": stats.acceptance_length, "ci95": [stats.ci95.low, stats.ci95.high]}
