"""Requests to the engine and their outputs. Callers build a Request; the engine fills its RequestOutput."""

from dataclasses import dataclass, field
from typing import Literal

from eyas.base.errors import InputError
from eyas.engine.grammar import Grammar
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.tree.acceptance_length import RequestRounds
from eyas.tree.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]
Speculation = Literal["auto", "off", "max"]


@dataclass(frozen=True)
class StopCriteria:
    """The conditions that end an output besides the target's own end-of-turn ids.

    strings: the text is cut before the first of them, also if it ends inside an accepted run. ids: they end the output
    like end-of-turn ids. ignore_eos: the target's own ids do not end it; for measurements with a fixed length.
    """

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt as token ids of the target's chat template, and how to answer it.

    grammar: structured output. logprobs: alternatives to report for each token (0: the token's own; None: nothing).
    wants_text: fill `RequestOutput.text` as tokens come. wants_rounds: keep `RequestOutput.draft_tree` up to date; its
    batch then runs without CUDA graphs, and trees are copied to the host.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop: StopCriteria = field(default_factory=StopCriteria)
    speculation: Speculation = "auto"
    grammar: Grammar | None = None
    logprobs: int | None = None
    wants_text: bool = False
    wants_rounds: bool = False


@dataclass(frozen=True)
class DraftTree:
    """The nodes that the target verified for one request in one round, parents before children.

    Node 0 is the root, the token before those of the round; it is its own parent. path: the accepted nodes below the
    root that are part of the output, from the root down.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token under the target's raw logits, and the most likely tokens there with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class RequestOutput:
    """The tokens of a request as they come; complete when `finish_reason` is set. The engine writes it.

    By token: is_draft[i], whether token i was an accepted draft token (False: the target's own token); token_times_s,
    seconds after the request was added (tokens of one round share its end); text_ends, how much of `text` was there.
    By round: accepted and offered (see `RequestRounds`); proposed, the draft tokens that were verified;
    traces, of rounds that drafted.
    text: with `wants_text`; it holds back what a stop string may still cut. draft_tree: of the newest round, with
    `wants_rounds`; None if that round drafted nothing. num_cached_tokens: prompt tokens found in the prefix cache.
    drafter: index of the engine's drafter that serves the request.
    """

    request: Request
    token_ids: list[int] = field(default_factory=list)
    is_draft: list[bool] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    traces: list[AcceptanceTrace | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    text_ends: list[int] = field(default_factory=list)
    draft_tree: DraftTree | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    drafter: int = 0

    @property
    def rounds(self) -> RequestRounds:
        """The rounds after the prefill, for `tree.acceptance_length`."""
        return RequestRounds(tuple(self.accepted), tuple(self.offered))

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_times_s[0]

    @property
    def tpot_s(self) -> float | None:
        """(end-to-end - TTFT) / (output tokens - 1), as SGLang and vLLM define it; None for a single token."""
        if len(self.token_times_s) < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (len(self.token_times_s) - 1)


def max_new_tokens(request: Request, max_context: int, vocab_size: int) -> int:
    """Returns the maximum number of tokens for the request.

    Raises:
        InputError: the request can never run.
    """
    num_prompt = len(request.prompt_ids)
    if not num_prompt:
        raise InputError(f"The prompt of request {request.id} has no tokens", "Write something into the prompt")
    if request.max_tokens < 1:
        raise InputError(f"Request {request.id} has max_tokens={request.max_tokens}", "Set max_tokens to 1 or more")
    request.sampling.check_vocab(vocab_size)
    if num_prompt >= max_context:
        raise InputError(
            f"The prompt of request {request.id} has {num_prompt} tokens and leaves no room for an answer in the "
            f"context of {max_context}",
            f"Shorten the prompt to at most {max_context - 1} tokens",
        )
    return min(max_context - num_prompt, request.max_tokens)
