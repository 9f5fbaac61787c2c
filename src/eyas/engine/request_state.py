"""The state of requests inside the engine: plain data of the host, shared by scheduler and output processor."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from eyas.chat.detokenizer import TextStream
from eyas.engine.request import RequestOutput
from eyas.memory.kv_cache_manager import KVAllocation


@dataclass(eq=False, slots=True)
class RequestState:
    """A request from `Engine.add` to its end, waiting or running. token_ids: the prompt and the output so far."""

    output: RequestOutput
    max_new_tokens: int
    added_s: float
    token_ids: list[int]
    text_stream: TextStream | None
    has_run: bool = False

    @property
    def is_new(self) -> bool:
        """True before the first token; a preempted request continues where it was."""
        return not self.output.token_ids


class RoundKind(NamedTuple):
    """The key of requests that may share a round: the drafter, and whether they always use the largest tree."""

    is_max: bool = False
    drafter: int = 0


@dataclass(eq=False, slots=True)
class RunningRequest:
    """A request that holds KV memory. Columns are positions of its text.

    Attributes:
        kind: The kind of its rounds.
        prefill_end: The number of columns that prefill must fill.
        num_prefilled: The number of columns whose prefill is launched.
        is_prefilled: True if the prefill of the whole text is launched.
        num_committed: The number of committed columns in the results that were read.
        draft_lag_tokens: The number of committed columns at the end that the drafter has not read.
        growth_in_flight: The maximum number of tokens that each launched and unread round adds.
        is_removed: True after the request has ended; results of work in flight are then ignored.
    """

    state: RequestState
    kv: KVAllocation
    kind: RoundKind
    prefill_end: int
    num_prefilled: int
    num_committed: int
    draft_lag_tokens: int
    is_started: bool = False
    is_prefilled: bool = False
    growth_in_flight: deque[int] = field(default_factory=deque)
    awaits_first_token: bool = False
    is_removed: bool = False

    @property
    def max_committed(self) -> int:
        """Upper bound of the committed columns once all launched work is done."""
        return self.num_committed + sum(self.growth_in_flight)

    @property
    def needs_round(self) -> bool:
        """True if a token may be missing once all launched work is read. Every round gives at least one token."""
        launched = len(self.state.output.token_ids) + self.awaits_first_token + len(self.growth_in_flight)
        return launched < self.state.max_new_tokens
