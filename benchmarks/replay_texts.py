"""Greedy answers with their features, for benchmarks that replay them with a head (`eyas.evaluation.replay`)."""

from collections.abc import Sequence

import torch

from eyas.bench.workload import Prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.evaluation.replay import AnswerSpan
from eyas.features.layout import Row
from eyas.model.attention import DenseAttention
from eyas.model.target import Target

SLOTS = 8  # requests at a time


def answer_greedily(target: Target, prompts: Sequence[Prompt], max_tokens: int) -> tuple[list[Row], list[AnswerSpan]]:
    """Returns the prompts with the target's greedy answers and the features of both, and the spans of the answers."""
    engine = Engine(target, (), SLOTS, max(len(prompt.ids) for prompt in prompts) + max_tokens)
    requests = [Request(prompt.id, tuple(prompt.ids), max_tokens) for prompt in prompts]
    answers = {one.request.id: one.token_ids for one in plain_loop(engine, RequestList(requests))}
    rows, spans = [], []
    for number, prompt in enumerate(prompts):
        ids_T = torch.tensor([*prompt.ids, *answers[prompt.id]])
        out = target.forward(ids_T[None], torch.arange(len(ids_T))[None], DenseAttention(), want_aux=True)
        assert out.aux_BTL is not None, "the captured layers were asked for"
        mask_T = torch.arange(len(ids_T)) >= len(prompt.ids)
        rows.append(Row(prompt.id, "", ids_T, mask_T, out.aux_BTL[0], torch.empty(0)))
        spans.append(AnswerSpan(number, ids_T, len(prompt.ids), len(ids_T)))
    return rows, spans
