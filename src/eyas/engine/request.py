"""Requests to the engine and their outputs. Callers build a Request; the engine fills its RequestOutput."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from eyas.base.errors import InputError
from eyas.engine.min_length import MinLength
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.tree.acceptance_length import RequestRounds
from eyas.tree.sampling import SamplingParams

if TYPE_CHECKING:  # llguidance is imported only where grammars are built
    from eyas.engine.grammar import Grammar

FinishReason = Literal["stop", "length", "cancelled", "error"]
Speculation = Literal["auto", "off", "max"]


@dataclass(frozen=True)
class StopCriteria:
    """The conditions that end an output, besides the target's end-of-turn ids.

    Attributes:
        strings: Stop strings. The text is cut before the first of them.
        ids: Token ids that end the output like end-of-turn ids.
        ignore_eos: True if the target's end-of-turn ids do not end the output; for measurements with a fixed length.
    """

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt and the parameters of its output.

    Attributes:
        id: The id; no two open requests may have the same.
        prompt_ids: The token ids of the prompt.
        max_tokens: The maximum number of output tokens.
        sampling: Temperature, penalties and other sampling parameters.
        seed: The seed of the sampling.
        stop: The conditions that end the output.
        speculation: "auto" (the policy chooses), "off" (plain decoding) or "max" (always the largest tree).
        grammar: The grammar or least length that the output must fit; None for any output.
        logprobs: The number of alternatives to report for each token, besides the token itself; None for no
            log-probabilities.
        wants_text: True to fill `RequestOutput.text` while tokens are generated.
        shown_ids: The special tokens that give text. Others give none.
        tenant: The owner of the request. Its drafts may copy from outputs of the same owner; "" for none.
        wants_rounds: True to update `RequestOutput.draft_tree` in each round. The whole batch then runs slower, without
            CUDA graphs.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop: StopCriteria = field(default_factory=StopCriteria)
    speculation: Speculation = "auto"
    grammar: "Grammar | MinLength | None" = None
    logprobs: int | None = None
    wants_text: bool = False
    shown_ids: frozenset[int] = frozenset()
    tenant: str = ""
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
    """The output of a request. The engine appends to it; it is complete when `finish_reason` is set.

    Attributes:
        request: The request.
        token_ids: The output tokens.
        is_draft: For each token, True if it was an accepted draft token, False if the target sampled it.
        is_copy: For each token, True if it was an accepted draft token that a copy of earlier text also proposed.
        token_times_s: For each token, the seconds from `Engine.add` to the end of its round.
        accepted: For each round, the number of tokens that it added; see `RequestRounds`.
        offered: For each round, the number of tree levels that the target checked; see `RequestRounds`.
        proposed: For each round, the average number of draft tokens per request; 0 if the request did not draft.
        traces: For each round, the acceptance trace; None if the request did not draft.
        logprobs: For each token, its log-probabilities, if the request wants them.
        text: The text, if the request wants it. Text that may become a stop string is not included yet.
        text_ends: For each token, the length of `text` after it, if the request wants text.
        draft_tree: The tree of the newest round, with `wants_rounds`; None if that round did not draft.
        num_cached_tokens: The prompt tokens that were found in the prefix cache.
        queue_s: The seconds from `Engine.add` until the request ran; 0 while it waits.
        num_preemptions: How often the request gave up its memory and waited again.
        finish_reason: "stop", "length", "cancelled" or "error"; None while the request runs.
        drafter: The index of the engine's drafter for this request.
    """

    request: Request
    token_ids: list[int] = field(default_factory=list)
    is_draft: list[bool] = field(default_factory=list)
    is_copy: list[bool] = field(default_factory=list)
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
    queue_s: float = 0.0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    drafter: int = 0

    @property
    def rounds(self) -> RequestRounds:
        """The rounds after the prefill, for `tree.acceptance_length`."""
        return RequestRounds(tuple(self.accepted), tuple(self.offered))

    @property
    def ttft_s(self) -> float:
        """The seconds from `Engine.add` to the first token."""
        return self.token_times_s[0]

    @property
    def tpot_s(self) -> float | None:
        """(end-to-end - TTFT) / (output tokens - 1), as SGLang and vLLM define it; None for a single token."""
        if len(self.token_times_s) < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (len(self.token_times_s) - 1)


def max_new_tokens(request: Request, max_context: int, vocab_size: int) -> int:
    """Returns the maximum number of output tokens: `max_tokens`, or less if the context is shorter.

    Raises:
        InputError: the prompt is empty or too long, or a parameter is out of range.
    """
    num_prompt = len(request.prompt_ids)
    if not num_prompt:
        raise InputError(f"The prompt of request {request.id} has no tokens", "Write something into the prompt")
    if request.max_tokens < 1:
        raise InputError(f"Request {request.id} has max_tokens={request.max_tokens}", "Set max_tokens to 1 or more")
    request.sampling.check_vocab(vocab_size)
    if num_prompt >= max_context:
        problem = f"The prompt of request {request.id} has {num_prompt} tokens and leaves no room for an answer"
        fix = f"Shorten the prompt to at most {max_context - 1} tokens"
        raise InputError(f"{problem} in the context of {max_context}", fix)
    return min(max_context - num_prompt, request.max_tokens)
