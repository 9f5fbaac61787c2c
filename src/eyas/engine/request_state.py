"""The state of requests inside the engine: plain data of the host, shared by scheduler and output processor."""

from dataclasses import dataclass, field
from typing import NamedTuple

from eyas.chat.detokenizer import TextStream
from eyas.engine.request import RequestOutput
from eyas.memory.kv_cache_manager import KVAllocation
from eyas.speculation.copy_index import CopyIndex


@dataclass(eq=False, slots=True)
class RequestState:
    """A request from `Engine.add` to its end, waiting or running.

    token_ids: the prompt and the output so far. copy_index: the places in them, up to date when copies are searched.
    """

    output: RequestOutput
    max_new_tokens: int
    added_s: float
    token_ids: list[int]
    text_stream: TextStream | None
    has_run: bool = False
    copy_index: CopyIndex = field(default_factory=CopyIndex)

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
        speculates: False if its rounds do not draft, whatever arm is chosen.
        reports: True if it wants log-probabilities or draft trees.
        prefill_end: The number of columns that prefill must fill.
        is_prefilled: True if the prefill of the whole text is launched.
        num_committed: The number of committed columns: of launched prefills, and of the results that were read.
        max_committed: Upper bound of the committed columns once all launched work is done.
        max_missing: Upper bound of the missing output tokens once all launched work is read: each round gives at least
            one token.
        draft_lag_tokens: The number of committed columns at the end that the drafter has not read; an upper bound
            while a round with copies is not read.
        num_draft_reads: The number of times that the drafter was told to read them all.
        num_unread_rounds: The number of launched rounds whose results were not read.
        is_removed: True after the request has ended; results of work in flight are then ignored.
    """

    state: RequestState
    kv: KVAllocation
    kind: RoundKind
    speculates: bool
    reports: bool
    prefill_end: int
    num_committed: int
    max_committed: int
    max_missing: int
    draft_lag_tokens: int
    is_started: bool = False
    is_prefilled: bool = False
    is_removed: bool = False
    num_draft_reads: int = 0
    num_unread_rounds: int = 0

    @property
    def has_known_lag(self) -> bool:
        """False if `draft_lag_tokens` may be more than the text has: each unread round gave at least one column."""
        return self.draft_lag_tokens <= self.num_committed + self.num_unread_rounds
