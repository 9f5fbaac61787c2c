"""Decides which requests run and what the device computes next. Called by the engine, on the host.

    waiting -> admit (request slot, KV memory, prefix cache) -> prefill, in chunks -> rounds -> finished -> prefix cache
       ^                                                                                |
       +---------------------- preempted, when KV memory runs out ----------------------+

The host knows an upper bound of each text's length and has allocated slots for it; the device knows the true length.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

from eyas.engine.copy_rows import CopyRows
from eyas.engine.counters import EngineCounters
from eyas.engine.request import Request
from eyas.engine.request_state import RequestState, RoundKind, RunningRequest
from eyas.engine.runner_data import PrefillChunk, RoundBatch
from eyas.memory.kv_cache_manager import KVCacheManager
from eyas.speculation.arms import OFF
from eyas.speculation.batch_load import BatchLoad, FixedArm, Policy, SpeculationDecision
from eyas.speculation.copy_index import MAX_COPY, Copy, CopyFinder

PREFILL_CHUNK = 512  # prompt tokens of one prefill at most: running requests wait no longer than that
COPY_IDLE, COPY_EVERY = 64, 4  # after so many rounds without a used copy, only one round in so many searches for copies
SLOT_BLOCK = 32  # KV slots are allocated in blocks of at least this many


@dataclass(frozen=True, eq=False)
class PrefillWork:
    """Prompt chunks for one forward. members: the requests that get their first token, in the order of the chunks."""

    chunks: tuple[PrefillChunk, ...]
    members: tuple[RunningRequest, ...]

    @property
    def num_logprobs(self) -> int | None:
        """The largest number of log-probability alternatives that a member requests."""
        return _max_logprobs([request.state.output.request for request in self.members])


@dataclass(frozen=True, eq=False)
class RoundWork:
    """One round.

    contexts: the number of committed columns of each member that the host knew at launch.
    growths: the maximum number of tokens that the round adds to each member.
    draft_reads: `RunningRequest.num_draft_reads` of each member.
    copies: the copy that was proposed for each member, whether the round uses it or not; empty if none was.
    prefill: the prompt chunks of other requests that share the round's forward; None for none.
    """

    members: tuple[RunningRequest, ...]
    batch: RoundBatch
    decision: SpeculationDecision
    contexts: tuple[int, ...]
    kind: RoundKind
    growths: tuple[int, ...]
    draft_reads: tuple[int, ...]
    copies: tuple[Copy | None, ...] = ()
    prefill: PrefillWork | None = None


class Scheduler:
    """The queues of waiting and running requests. It decides what the device does next.

    Attributes:
        policies: The policy of each drafter, which chooses the arm of its rounds. The engine's owner may replace them.
        shares_forwards: True to run prompt chunks and a round in one forward; False to alternate them.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        policies: list[Policy],
        lookahead_slots: int,
        counters: EngineCounters,
        copies: CopyFinder | None = None,
        *,
        shares_forwards: bool,
    ) -> None:
        self.kv_cache = kv_cache
        self.policies = policies
        self.lookahead_slots = lookahead_slots
        self.waiting: deque[RequestState] = deque()
        self.running: list[RunningRequest] = []
        self._counters = counters
        self._copies = copies
        self.shares_forwards = shares_forwards
        self._rounds_without_copies = 0
        self._last_was_prefill = False
        self._last_kind = RoundKind()

    def admit(self) -> list[RunningRequest]:
        """Moves waiting requests to running, in order, as long as there are request slots and memory; returns them."""
        admitted = []
        while self.waiting and self.kv_cache.has_free_req_slot:
            state = self.waiting[0]
            # The row of a prompt's last token decides the first output token; a preempted text has its root already.
            prefill_end = len(state.token_ids) - (not state.is_new)
            # Running requests keep some free slots to grow, or one of them would be preempted at once.
            reserved = self.lookahead_slots * len(self.running)
            prompt = state.token_ids[:prefill_end]
            kv = self.kv_cache.allocate(prompt, self.lookahead_slots, reserved, state.output.drafter)
            if kv is None:
                break
            self.waiting.popleft()
            asked, num_missing = state.output.request, state.max_new_tokens - len(state.output.token_ids)
            kind = RoundKind(asked.speculation == "max", state.output.drafter)
            speculates, reports = asked.speculation != "off", asked.logprobs is not None or asked.wants_rounds
            lengths = prefill_end, kv.num_shared, kv.num_shared, num_missing, kv.draft_lag_tokens
            request = RunningRequest(state, kv, kind, speculates, reports, *lengths)
            self.running.append(request)
            admitted.append(request)
        return admitted

    def next_work(self) -> PrefillWork | RoundWork | None:
        """Returns the next work to launch, or None. Neither prefills nor rounds wait for long."""
        to_prefill = [request for request in self.running if not request.is_prefilled]
        to_continue = [request for request in self.running if request.is_prefilled and request.max_missing > 0]
        if self.shares_forwards and to_prefill and to_continue:
            completes = to_prefill[0].prefill_end - to_prefill[0].num_committed <= PREFILL_CHUNK
            work = self._round(to_continue, completes)
            to_prefill = [request for request in to_prefill if not request.is_removed]  # preempted by the round
            prefill = self._prefill(to_prefill) if to_prefill else None
            if work is None or prefill is None:
                return work or prefill
            batch = replace(work.batch, chunks=prefill.chunks, num_chunk_logprobs=prefill.num_logprobs)
            return replace(work, batch=batch, prefill=prefill)
        if to_prefill and not (to_continue and self._last_was_prefill):
            self._last_was_prefill = True
            return self._prefill(to_prefill)
        self._last_was_prefill = self._last_was_prefill and not to_continue
        return self._round(to_continue) if to_continue else None

    def remove(self, request: RunningRequest) -> None:
        """Ends a running request and frees its memory; its text stays in the prefix cache."""
        request.is_removed = True
        self.running.remove(request)
        # A text that ended inside a run has more committed columns than tokens: only its tokens are cached.
        kept = min(request.num_committed, len(request.state.token_ids) - 1) + 1
        num_read = request.num_committed - request.draft_lag_tokens
        self.kv_cache.free(request.kv, request.state.token_ids[:kept], num_read)

    def _prefill(self, requests: Sequence[RunningRequest]) -> PrefillWork:
        budget, chunks, members = PREFILL_CHUNK, [], []
        for request in requests:
            begin, end = request.num_committed, min(request.prefill_end, request.num_committed + budget)
            if end == begin and request.is_started:
                continue
            budget -= end - begin
            token_ids = request.state.token_ids
            samples = end == request.prefill_end and request.state.is_new
            chunk = PrefillChunk(request.kv.req_slot, tuple(token_ids), begin, end, not request.is_started, samples)
            chunks.append(chunk)
            request.draft_lag_tokens += end - begin
            request.is_started, request.num_committed, request.max_committed = True, end, end
            request.is_prefilled = end == request.prefill_end
            if request.is_prefilled:
                self.kv_cache.cache_prefix(request.kv, token_ids[:end])
            if samples:
                request.max_missing -= 1
                members.append(request)
        return PrefillWork(tuple(chunks), tuple(members))

    def _round(self, requests: Sequence[RunningRequest], completes_prompt: bool = False) -> RoundWork | None:
        kind, requests = self._next_kind(requests)
        more = 0 if self._copies is None else MAX_COPY
        self._grow(requests, max(arm.nodes for arm in self.policies[0].arms) + more)
        members = tuple([request for request in requests if not request.is_removed])
        if not members:
            return None
        speculates = [request.speculates for request in members]
        contexts = tuple([request.num_committed for request in members])
        lags = tuple([request.draft_lag_tokens for request in members])
        new = [one for one in compress(members, lags) if one.speculates and one.max_committed == one.prefill_end]
        num_unread = max([request.max_committed + 1 - len(request.state.token_ids) for request in members])
        copies = self._find_copies(members, kind, num_unread)
        load = BatchLoad(
            contexts=tuple(compress(contexts, speculates)),
            draft_lags=tuple(compress(lags, speculates)),
            plain_contexts=() if all(speculates) else tuple(compress(contexts, [not one for one in speculates])),
            new_prompt_tokens=sum(request.draft_lag_tokens for request in new),
            num_new=len(new),
            copies=tuple([0.0 if copy is None else copy.expected for copy in compress(copies, speculates)]),
            completes_prompt=completes_prompt,
        )
        decision = self._policy_for(kind, load).decide(load)
        decided = iter(decision.drafts)
        drafts = tuple([one and next(decided) for one in speculates]) if load.plain_contexts else decision.drafts
        # After a round of copies whose length is not known yet, the bound of the lag may exceed the text.
        drafts = tuple([one and request.has_known_lag for one, request in zip(drafts, members, strict=True)])
        shape, used = decision.arm.shape if any(drafts) or decision.copies else None, None
        nodes = 0 if shape is None else len(drafts) + sum(drafts) * (shape.nodes - 1)
        self._rounds_without_copies = 0 if decision.copies else self._rounds_without_copies + 1
        if decision.copies:
            used = CopyRows(copies, num_unread, decision.copies == "alone")
            nodes += used.num_rows_beyond(0 if used.is_alone or shape is None else shape.nodes - 1)
        asked = [request.state.output.request for request in members if request.reports]
        batch = RoundBatch(
            tuple([request.kv.req_slot for request in members]),
            shape,
            nodes=nodes,
            drafts=() if shape is None else drafts,
            draft_lags=tuple(compress(lags, drafts)),
            num_logprobs=_max_logprobs(asked),
            wants_trees=any(request.wants_rounds for request in asked),
            drafter=kind.drafter,
            copies=used,
        )
        growths = self._launch_round(members, batch)
        reads = tuple([request.num_draft_reads for request in members])
        return RoundWork(members, batch, decision, contexts, kind, growths, reads, copies)

    def _find_copies(
        self, members: Sequence[RunningRequest], kind: RoundKind, num_unread: int
    ) -> tuple[Copy | None, ...]:
        """Returns the proposed copy of each member; empty if copies are disabled or nothing was found."""
        finder, idle = self._copies, self._rounds_without_copies
        if finder is None or kind.is_max or (idle > COPY_IDLE and idle % COPY_EVERY):
            return ()
        states = [one.state if one.speculates else None for one in members]
        found = [
            one and finder.propose(one.copy_index, one.token_ids, one.output.request.tenant, num_unread)
            for one in states
        ]
        return tuple(found) if any(found) else ()

    def _launch_round(self, members: Sequence[RunningRequest], batch: RoundBatch) -> tuple[int, ...]:
        """Updates the bounds of the members for a round. Returns the largest number of new tokens of each member."""
        growths = [1] * len(members)
        if batch.shape is not None:
            growths = [batch.shape.max_accepted if drafting else 1 for drafting in batch.drafts]
        if batch.copies is not None:
            copied = [0 if copy is None else 1 + MAX_COPY for copy in batch.copies.copies]
            growths = [max(growth, more) for growth, more in zip(growths, copied, strict=True)]
        for request, growth, drafting in zip(members, growths, batch.drafts or (False,) * len(members), strict=True):
            request.max_missing -= 1
            request.num_unread_rounds += 1
            request.max_committed += growth
            if not drafting:
                request.draft_lag_tokens += growth
            elif request.draft_lag_tokens:
                request.draft_lag_tokens = 0
                request.num_draft_reads += 1
                self.kv_cache.mark_read(request.kv)
        return tuple(growths)

    def _next_kind(self, requests: Sequence[RunningRequest]) -> tuple[RoundKind, list[RunningRequest]]:
        """Chooses one kind of round in turn, among those that requests need, and returns it with its requests.

        first drafter | second drafter | first, largest tree | second, largest tree | first ...
        """
        kinds = [request.kind for request in requests]
        needed = set(kinds) if kinds.count(kinds[0]) < len(kinds) else kinds[:1]
        self._last_kind = min([kind for kind in needed if kind > self._last_kind] or needed)
        if len(needed) == 1:
            return self._last_kind, list(requests)
        return self._last_kind, [request for request in requests if request.kind == self._last_kind]

    def _policy_for(self, kind: RoundKind, load: BatchLoad) -> Policy:
        if kind.is_max:
            return FixedArm(self.policies[0].arms[-1])
        return self.policies[kind.drafter] if load.contexts else FixedArm(OFF)

    def _grow(self, requests: Sequence[RunningRequest], num_nodes: int) -> None:
        """Allocates KV slots for a round of `num_nodes` nodes per request. Preempts the newest requests if needed."""
        for one in [one for one in requests if one.max_committed + num_nodes > one.kv.num_columns]:
            while not one.is_removed and not self.kv_cache.grow(one.kv, one.max_committed + num_nodes, SLOT_BLOCK):
                self._preempt(self.running[-1])

    def _preempt(self, request: RunningRequest) -> None:
        """Frees the memory of a request and puts it first in the waiting queue, with the tokens read so far."""
        self.remove(request)
        self.waiting.appendleft(request.state)
        self._counters.preemptions += 1
        request.state.output.num_preemptions += 1


def _max_logprobs(requests: Sequence[Request]) -> int | None:
    return max([request.logprobs for request in requests if request.logprobs is not None], default=None)
