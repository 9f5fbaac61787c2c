"""What is asked for and what comes back."""

from dataclasses import dataclass, field
from typing import Literal

from eyas.base.errors import InputError
from eyas.engine.grammar import Grammar
from eyas.speculation.acceptance_trace import AcceptanceTrace
from eyas.tree.sampling import SamplingParams
from eyas.tree.stats import RequestRounds

FinishReason = Literal["stop", "length", "cancelled", "error"]
Speculation = Literal["auto", "off", "max"]
MAIN, CANARY = "main", "canary"
"""The head that an engine has, and one that is tried beside it: the words of metrics and logs."""


@dataclass(frozen=True)
class StopCriteria:
    """What ends an answer beside the target's own end-of-turn ids.

    strings: the text is cut before the first of them, wherever in an accepted run it ends. ids: end like end-of-turn.
    ignore_eos: the target's own ids do not end the answer; for measurements of a fixed length.
    """

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt, as token ids of the target's chat template.

    grammar: what the answer must look like (structured output).
    logprobs: how many alternatives to report for each token (0: the token's own only; None: nothing).
    wants_text: fill `Answer.text` as the tokens come. wants_rounds: keep `Answer.tree` up to date; its batch runs
    kernel by kernel on CUDA, and copies the trees to the host.
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
    """What the target verified for one request in one round: nodes, a parent before its children.

    Node 0 is the root, the token before those of the round, and its own parent. path: the nodes below it that were
    accepted and are part of the answer, downwards.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of a token under the target's raw logits, and the likeliest tokens there with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class RequestOutput:
    """A request's tokens as they come; complete when `finish` is set.

    drafted[i] says whether token i was an accepted draft token (False: the target's own, first or bonus).
    By round: accepted and offered (see `tree.stats.RequestRounds`), proposed: the draft tokens that were verified, and
    evidence, of rounds that drafted.
    Times in seconds after the request was handed in; time_s[i] belongs to token i, several share a round's end.
    text: with `wants_text`, what is certain not to be cut by a stop string; text_ends[i]: how much of it was there with
    token i. cached: prompt tokens found in memory. tree: of the newest round, with `wants_rounds`; None where it
    drafted nothing. head: which of the engine's heads drafts for it.
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
    head: str = MAIN

    @property
    def rounds(self) -> RequestRounds:
        """The rounds after the prefill, for `tree.stats`."""
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


def max_new_tokens(request: Request, context: int, vocab_size: int) -> int:
    """How many tokens the request may get; InputError if it asks for none or there is no room for one."""
    if not request.prompt_ids:
        raise InputError(f"prompt {request.id} without tokens", "at least one", "write something into the prompt")
    if request.max_tokens < 1:
        raise InputError(
            f"prompt {request.id} with max_tokens = {request.max_tokens}", "at least 1", "ask for a token or more"
        )
    request.sampling.check_vocab(vocab_size)
    room = context - len(request.prompt_ids)
    if room < 1:
        raise InputError(
            f"prompt {request.id} of {len(request.prompt_ids)} tokens",
            f"at most {context - 1}, so that one token fits into the context of {context}",
            "shorten the prompt",
        )
    return min(room, request.max_tokens)
