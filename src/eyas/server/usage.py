"""What a call cost and how drafting went, from its pieces and answers."""

from collections.abc import Sequence

import numpy as np

from eyas.engine.request import CANARY, Request, RequestOutput
from eyas.server.generation import Piece
from eyas.server.openai_responses import CanaryDecoding, Metrics, PromptDetails, SpeculativeDecoding, Usage


class Tally:
    """Tokens of a call so far. Its requests come prompt by prompt, `count` for each; a prompt counts once."""

    def __init__(self, requests: Sequence[Request], count: int) -> None:
        self.count = count
        self.prompt_tokens = sum(len(request.prompt_ids) for request in requests[::count])
        self._output = [0] * len(requests)
        self._cached = [0] * len(requests)

    def add(self, piece: Piece) -> None:
        """Count a piece."""
        self._output[piece.index] += len(piece.token_ids)
        self._cached[piece.index] = piece.cached

    @property
    def usage(self) -> Usage:
        """As it stands. The later answers to one prompt find it in memory anyway; the first one's hit is reported."""
        output = sum(self._output)
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=output,
            total_tokens=self.prompt_tokens + output,
            prompt_tokens_details=PromptDetails(cached_tokens=sum(self._cached[:: self.count])),
        )


def metrics_of(answers: Sequence[RequestOutput], most_drafted: int) -> Metrics | None:
    """vLLM's figures of one answer. most_drafted: the deepest that a round may draft, 0 without a head."""
    if most_drafted == 0 or len(answers) != 1 or answers[0].request.speculation == "off":
        return None
    return Metrics(speculative_decoding=speculative_decoding(answers[0], most_drafted))


def speculative_decoding(answer: RequestOutput, most_drafted: int) -> SpeculativeDecoding:
    """Over the rounds that drafted; one without is none of vLLM's steps. A tree's draft tokens are its nodes."""
    steps = [(kept - 1, nodes) for kept, nodes in zip(answer.accepted, answer.proposed, strict=True) if nodes]
    accepted, drafted = [step[0] for step in steps], [step[1] for step in steps]
    found = SpeculativeDecoding(
        mean_acceptance_length=1 + sum(accepted) / max(len(steps), 1),
        draft_acceptance_rate=sum(accepted) / max(sum(drafted), 1),
        acceptance_histogram=np.bincount(accepted, minlength=most_drafted + 1).tolist(),
        num_spec_steps=len(steps),
        num_accepted_draft_tokens=sum(accepted),
        num_draft_tokens=sum(drafted),
        num_spec_tokens=most_drafted,
        per_step_accepted=accepted,
        per_step_drafted=drafted,
    )
    return CanaryDecoding(**found.model_dump(), head="canary") if answer.head == CANARY else found
