"""What a call cost and how drafting went, from its pieces and answers."""

from collections.abc import Sequence

import numpy as np

from eyas.engine.canary import CANARY
from eyas.engine.request import Request, RequestOutput
from eyas.server.generation import OutputDelta
from eyas.server.openai_responses import CanarySpeculativeStats, PromptDetails, ResponseMetrics, SpeculativeStats, Usage


class UsageCounter:
    """Tokens of a call so far. Its requests come prompt by prompt, `count` for each; a prompt counts once."""

    def __init__(self, requests: Sequence[Request], num_choices: int) -> None:
        self.num_choices = num_choices
        self.prompt_tokens = sum(len(request.prompt_ids) for request in requests[::num_choices])
        self._output = [0] * len(requests)
        self._cached = [0] * len(requests)

    def add(self, delta: OutputDelta) -> None:
        """Count a piece."""
        self._output[delta.index] += len(delta.token_ids)
        self._cached[delta.index] = delta.num_cached_tokens

    @property
    def usage(self) -> Usage:
        """As it stands. The later answers to one prompt find it in memory anyway; the first one's hit is reported."""
        output = sum(self._output)
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=output,
            total_tokens=self.prompt_tokens + output,
            prompt_tokens_details=PromptDetails(cached_tokens=sum(self._cached[:: self.num_choices])),
        )


def build_metrics(outputs: Sequence[RequestOutput], max_draft_tokens: int) -> ResponseMetrics | None:
    """vLLM's figures of one answer. most_drafted: the deepest that a round may draft, 0 without a head."""
    if max_draft_tokens == 0 or len(outputs) != 1 or outputs[0].request.speculation == "off":
        return None
    return ResponseMetrics(speculative_decoding=build_speculative_stats(outputs[0], max_draft_tokens))


def build_speculative_stats(output: RequestOutput, max_draft_tokens: int) -> SpeculativeStats:
    """Over the rounds that drafted; one without is none of vLLM's steps. A tree's draft tokens are its nodes."""
    steps = [(kept - 1, nodes) for kept, nodes in zip(output.accepted, output.proposed, strict=True) if nodes]
    accepted, drafted = [step[0] for step in steps], [step[1] for step in steps]
    found = SpeculativeStats(
        mean_acceptance_length=1 + sum(accepted) / max(len(steps), 1),
        draft_acceptance_rate=sum(accepted) / max(sum(drafted), 1),
        acceptance_histogram=np.bincount(accepted, minlength=max_draft_tokens + 1).tolist(),
        num_spec_steps=len(steps),
        num_accepted_draft_tokens=sum(accepted),
        num_draft_tokens=sum(drafted),
        num_spec_tokens=max_draft_tokens,
        per_step_accepted=accepted,
        per_step_drafted=drafted,
    )
    return CanarySpeculativeStats(**found.model_dump(), head="canary") if output.drafter == CANARY else found
