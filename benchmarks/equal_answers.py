"""Compares the engine's greedy answers with reference answers, for any drafter, policy and loop.

gpu_equality.py and drafter_words.py use it. Where an answer differs, the note of a row has the difference of the
reference's logits at the first wrong token: far below 0.001 it is a tie that rounding decides.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from result_rows import Row

from eyas.bench.workload import Prompt
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, overlap_loop, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import BatchLoad, FixedArm, Policy, SpeculationDecision

REFERENCE_BATCH = 50
LOOPS = {"plain": plain_loop, "overlap": overlap_loop}

Answers = dict[str, list[int]]


class ArmsInTurn(FixedArm):
    """A policy that runs one arm after another. Of several requests, a random part drafts."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.arms = tuple(arms)
        self._next, self._random = cycle(arms), random.Random(0)

    def decide(self, load: BatchLoad) -> SpeculationDecision:
        """Returns the decision to run the next arm."""
        arm = next(self._next)
        drafts = tuple(arm.shape is not None and self._random.random() < 0.7 for _ in load.contexts)
        return SpeculationDecision(arm if any(drafts) else OFF, drafts, arm, load)


@dataclass(frozen=True)
class Comparison:
    """The engine with the embedded pair, the reference model, the prompts and the reference answers."""

    engine: Engine
    model: Any
    prompts: list[Prompt]
    max_tokens: int
    expected: Answers

    def run(self, loop: str, policy: Policy | None) -> list[RequestOutput]:
        """Returns the engine's outputs. policy: None: the one that the engine has."""
        if policy is not None:
            self.engine.policies[0] = policy
        requests = [Request(prompt.id, prompt.ids, self.max_tokens) for prompt in self.prompts]
        return list(LOOPS[loop](self.engine, RequestList(requests)))

    def answer(self, loop: str, policy: Policy) -> Answers:
        """Returns the engine's answers by prompt id, from an empty prefix cache."""
        self.engine.kv_cache.clear_prefix_cache()
        return {output.request.id: output.token_ids for output in self.run(loop, policy)}

    def compare(self, name: str, found: Answers, note: str = "") -> Row:
        """Returns the row of these answers. note: the beginning of its note."""
        differing = [prompt for prompt in self.prompts if found[prompt.id] != self.expected[prompt.id]]
        equal, count = len(self.prompts) - len(differing), len(self.prompts)
        gaps = [gap for prompt in differing if (gap := self.logit_gap(prompt, found[prompt.id])) is not None]
        notes = [note] if note else []
        notes += [f"{len(differing)} differ"] if differing else []
        notes += [f"logits at the first wrong token differ by at most {max(gaps):.2g}"] if gaps else []
        return Row(name, equal, f"{count} of {count}", not differing, note=", ".join(notes))

    @torch.inference_mode()
    def logit_gap(self, prompt: Prompt, found: list[int]) -> float | None:
        """Returns the reference's logit of its token minus that of the other, where answers first differ.

        Returns None if one answer is the beginning of the other.
        """
        expected = self.expected[prompt.id]
        pairs = zip(expected, found, strict=False)
        at = next((step for step, (right, wrong) in enumerate(pairs) if right != wrong), None)
        if at is None:
            return None
        ids_1T = torch.tensor([[*prompt.ids, *expected[:at]]], device=self.model.device)
        logits_W = self.model(ids_1T).logits[0, -1]
        return float(logits_W[expected[at]] - logits_W[found[at]])


@torch.inference_mode()
def generate_answers(model: Any, prompts: Sequence[Prompt], max_tokens: int) -> Answers:
    """Returns the greedy answers of transformers' generate by prompt id, cut behind the end-of-turn token."""
    eos = model.generation_config.eos_token_id
    eos_ids = set(eos if isinstance(eos, list) else [eos])
    answers: Answers = {}
    ordered = sorted(prompts, key=lambda prompt: len(prompt.ids))
    for first in range(0, len(ordered), REFERENCE_BATCH):
        some = ordered[first : first + REFERENCE_BATCH]
        width = max(len(prompt.ids) for prompt in some)
        pads = [width - len(prompt.ids) for prompt in some]
        ids_BT = torch.tensor([[0] * pad + list(prompt.ids) for pad, prompt in zip(pads, some, strict=True)])
        mask_BT = (torch.arange(width) >= torch.tensor(pads)[:, None]).long()
        out_BT = model.generate(
            ids_BT.to(model.device),
            attention_mask=mask_BT.to(model.device),
            do_sample=False,
            max_new_tokens=max_tokens,
        )
        for prompt, ids in zip(some, out_BT[:, width:].tolist(), strict=True):
            end = next((step for step, token in enumerate(ids) if token in eos_ids), len(ids) - 1)
            answers[prompt.id] = ids[: end + 1]
    return answers
