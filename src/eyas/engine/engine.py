"""The engine, host side: who runs, who waits, and what came of it. The device side is `runner`.

    waiting -> admit (a line, memory, prefix cache) -> prefill, in chunks -> rounds -> finished -> prefix cache
       ^                                                                       |
       +------------------- preempted, when memory runs out -------------------+

`launch` queues the next piece of work on the stream and returns at once; `process` waits for its result and turns it
into tokens. Between the two other work may be launched: the host knows an upper bound of each length and has slots for
it, the device knows the truth.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress

from eyas.drafters.eagle3 import DrafterSpec
from eyas.engine.detokenizer import TextStream
from eyas.engine.device_stream import DeviceStream, WorkEvent, stream_for
from eyas.engine.model_runner import ModelRunner, PrefillChunk, PrefillOutput, RoundBatch, RoundOutput
from eyas.engine.request import CANARY, MAIN, FinishReason, Request, RequestOutput, max_new_tokens
from eyas.engine.sequences import (
    EngineCounters,
    RequestState,
    RoundKind,
    RunningRequest,
    Step,
    add_logprobs,
    max_logprobs,
    next_kind,
    set_draft_tree,
    wants_trees,
)
from eyas.kernels.dispatch import attention_for_device
from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_cache_manager import KVCacheManager
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.speculation.acceptance_trace import trace_from_row
from eyas.speculation.arms import OFF, Arm, BatchLoad
from eyas.speculation.budget import RoundReport
from eyas.speculation.policy import FixedArm, Policy

OnTokens = Callable[[RequestOutput, int], None]
"""Called with an answer and the number of its newest tokens, after every piece of work that gave it some."""

PREFILL_CHUNK = 512  # the most prompt tokens of one prefill: running answers wait for no more than this at a time
SLOT_BLOCK = 32  # columns of a line get their slots so many at a time


class Engine:
    """Runs up to `slots` requests at once."""

    def __init__(
        self,
        target: Target,
        draft: DrafterSpec | None,
        slots: int,
        context: int,
        *,
        memory_tokens: int | None = None,
        stream: DeviceStream | None = None,
        prepare: PrepareAttention | None = None,
    ) -> None:
        """context: the most tokens, prompt and answer together, that any request will reach.

        memory_tokens: tokens that the key-value memory holds; None: enough for every request to reach the context.
        """
        facts, weight = target.info, next(target.model.parameters())
        self.target = target
        self.max_running = slots
        self.max_context = min(context, facts.max_positions)
        shapes = () if draft is None else draft.shapes
        # Columns behind the text: the nodes of a round, and what the rounds before it may still add.
        self.lookahead_slots = max((shape.nodes + 2 * shape.max_accepted for shape in shapes), default=4)
        width = self.max_context + self.lookahead_slots + SLOT_BLOCK
        tokens = slots * width if memory_tokens is None else max(memory_tokens, width)
        sizes = (facts.num_layers, facts.num_kv_heads, facts.head_dim)
        pool = KVPool(sizes, tokens, (slots + 1, width), weight)  # and a spare line
        future_map = FutureMap(slots + 1, width, weight.device)
        prepare = attention_for_device(weight.device) if prepare is None else prepare
        drafter = None if draft is None else draft.build(target, pool, future_map, prepare)
        self.kv_cache = KVCacheManager(pool, num_drafters=2)
        self.runner = ModelRunner(target, drafter, pool, future_map, prepare)
        self.stream: DeviceStream = stream_for(weight.device) if stream is None else stream
        self.policy: Policy = FixedArm(OFF if draft is None else Arm("fixed", draft.shape))
        self.canary_policy: Policy = self.policy
        self.waiting: deque[RequestState] = deque()
        self.running: list[RunningRequest] = []
        self.counters = EngineCounters()
        self._setups: list[Callable[[], None]] = []
        self._just_filled = False
        self._turn = RoundKind()
        self._began_s = 0.0

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting

    @property
    def has_capacity(self) -> bool:
        """Whether a further request would be taken up before any other."""
        return len(self.running) + len(self.waiting) < self.max_running

    def max_new_tokens(self, request: Request) -> int:
        """How many tokens the request may get; InputError if it asks for none or there is no room for one."""
        return max_new_tokens(request, self.max_context, self.target.info.vocab_size)

    def add(self, request: Request, head: str = MAIN) -> RequestOutput:
        """Take up a request, for one of the heads; it runs as soon as there is room. InputError if it can never run."""
        job = RequestState(
            RequestOutput(request, head=head),
            self.max_new_tokens(request),
            time.perf_counter(),
            list(request.prompt_ids),
            TextStream(self.target.tokenizer, request.stop.strings)
            if request.wants_text or request.stop.strings
            else None,
        )
        self.waiting.append(job)
        return job.output

    def cancel(self, request_id: str) -> RequestOutput | None:
        """End a request; its answer, or None if there is no such one. What is launched for it is not read."""
        for one in self.running:
            if one.state.output.request.id == request_id:
                self._leave(one)
                return self._end(one.state, "cancelled")
        for job in self.waiting:
            if job.output.request.id == request_id:
                self.waiting.remove(job)
                return self._end(job, "cancelled")
        return None

    def clear_prefix_cache(self) -> None:
        """Empty the prefix cache: what comes next is computed anew. For measurements."""
        self.kv_cache.clear_prefix_cache()

    def check(self) -> None:
        """Assert what must hold between steps, as far as the host can see it."""
        self.kv_cache.check([one.kv for one in self.running])
        for one in self.running:
            assert one.num_committed <= one.max_committed <= len(one.kv.slots), (
                one.num_committed,
                one.max_committed,
                len(one.kv.slots),
            )
            if not one.growth_in_flight and one.is_prefilled and not one.awaits_first_token:
                assert one.num_committed == len(one.state.token_ids) - 1, "all but the root is committed"

    # --- launching ---------------------------------------------------------------------------------------------------

    def launch(self) -> Step | None:
        """Queue the next piece of work: prefills and rounds take turns, so that neither waits long for the other."""
        self._began_s = time.perf_counter()
        self._admit()
        filling = [one for one in self.running if not one.is_prefilled]
        going = [one for one in self.running if one.is_prefilled and one.needs_round]
        if filling and not (going and self._just_filled):
            step = self._launch_prefill(filling)
        else:
            step = self._launch_round(going) if going else None
        return step

    def _admit(self) -> None:
        """Start what waits, in order, while there are lines and memory."""
        while self.waiting and self.kv_cache.has_free_req_slot:
            job = self.waiting[0]
            # The row of a prompt's last token decides the first answer token; of a preempted text the root is known.
            goal = len(job.token_ids) - (not job.is_new)
            # Those that run need room to grow for a while, or one of them would be preempted at once.
            spare, head = self.lookahead_slots * len(self.running), int(job.output.head == CANARY)
            holding = self.kv_cache.allocate(job.token_ids[:goal], self.lookahead_slots, spare, head)
            if holding is None:
                return
            self.waiting.popleft()
            one = RunningRequest(
                job,
                holding,
                goal,
                holding.num_shared,
                num_committed=holding.num_shared,
                draft_lag_tokens=holding.draft_lag_tokens,
            )
            self.running.append(one)
            self._setups.append(
                partial(self.runner.sampler.admit, holding.req_slot, job.output.request, tuple(job.token_ids))
            )
            if not job.has_run:
                job.has_run = True
                job.output.num_cached_tokens = holding.num_shared
                self.counters.cached_tokens += holding.num_shared
                self.counters.prompt_tokens += len(job.token_ids)

    def _launch_prefill(self, filling: Sequence[RunningRequest]) -> Step:
        room, pieces, members = PREFILL_CHUNK, [], []
        for one in filling:
            end = min(one.prefill_end, one.num_prefilled + room)
            if end == one.num_prefilled and one.is_started:
                continue
            room -= end - one.num_prefilled
            samples = end == one.prefill_end and one.state.is_new
            pieces.append(
                PrefillChunk(
                    one.kv.req_slot, tuple(one.state.token_ids), one.num_prefilled, end, not one.is_started, samples
                )
            )
            one.draft_lag_tokens += end - one.num_prefilled
            one.is_started, one.num_prefilled, one.num_committed = True, end, end
            if end == one.prefill_end:
                self.kv_cache.cache_prefix(one.kv, one.state.token_ids[: one.prefill_end])
            if samples:
                one.awaits_first_token = True
                members.append(one)
        self._just_filled = True
        asked = max_logprobs(members)
        return Step(tuple(members), self._queue(lambda: self.runner.prefill(pieces, asked)))

    def _launch_round(self, going: Sequence[RunningRequest]) -> Step | None:
        self._just_filled = False
        self._turn, going = next_kind(going, self._turn)
        most = max((arm.nodes for arm in self.policy.arms), default=1)
        for one in going:
            while not one.is_removed and not self.kv_cache.grow(one.kv, one.max_committed + most, SLOT_BLOCK):
                self._preempt(self.running[-1])
        members = tuple(one for one in going if not one.is_removed)
        if not members:
            return None
        follows = [one.state.output.request.speculation != "off" for one in members]
        contexts = tuple(one.num_committed for one in members)
        load = BatchLoad(
            contexts=tuple(compress(contexts, follows)),
            draft_lags=tuple(one.draft_lag_tokens for one in compress(members, follows)),
            plain_contexts=tuple(context for context, may in zip(contexts, follows, strict=True) if not may),
        )
        turn = self._turn
        choice = self._policy_of(load).decide(load)
        wish = iter(choice.drafts)
        drafts = tuple(next(wish) if may else False for may in follows)
        shape, lines = choice.arm.shape, tuple(one.kv.req_slot for one in members)
        batch = RoundBatch(
            lines,
            num_logprobs=max_logprobs(members),
            wants_trees=wants_trees(members),
            is_canary=turn.drafter == CANARY,
        )
        if shape is not None:
            nodes = sum(shape.nodes if drafting else 1 for drafting in drafts)
            lags = tuple(one.draft_lag_tokens for one in compress(members, drafts))
            batch = replace(batch, shape=shape, nodes=nodes, drafts=drafts, draft_lags=lags)
        for one, drafting in zip(members, drafts, strict=True):
            one.growth_in_flight.append(shape.max_accepted if shape is not None and drafting else 1)
            one.draft_lag_tokens = 0 if drafting else one.draft_lag_tokens + 1
            if drafting and one.kv.draft_lag_tokens:
                self.kv_cache.mark_read(one.kv)
        return Step(members, self._queue(lambda: self.runner.round(batch)), batch, choice, contexts, turn)

    def _policy_of(self, load: BatchLoad) -> Policy:
        """Who decides for this round: nobody has to where all wish for the same."""
        if self._turn.is_max:
            return FixedArm(self.policy.arms[-1])
        return self._own_policy(self._turn) if load.contexts else FixedArm(OFF)

    def _own_policy(self, turn: RoundKind) -> Policy:
        return self.canary_policy if turn.drafter == CANARY else self.policy

    def _queue(self, work: Callable[[], PrefillOutput | RoundOutput]) -> WorkEvent:
        """Launch the work behind what the device must be told first."""
        writes, setups = self.kv_cache.take_table_writes(), self._setups
        self._setups = []

        def run() -> PrefillOutput | RoundOutput:
            self.runner.write_table(writes)
            for setup in setups:
                setup()
            return work()

        self.counters.host_s += time.perf_counter() - self._began_s
        return self.stream.launch(run)

    def _preempt(self, one: RunningRequest) -> None:
        """Give up its memory; it waits again, before all others, and goes on with the tokens that are read."""
        self._leave(one)
        self.waiting.appendleft(one.state)
        self.counters.preemptions += 1

    def _leave(self, one: RunningRequest) -> None:
        one.is_removed = True
        self.running.remove(one)
        # Of a text that ended inside a run, more is committed than the answer kept: only what is text stays known.
        kept = min(one.num_committed, len(one.state.token_ids) - 1) + 1
        self.kv_cache.free(one.kv, one.state.token_ids[:kept], one.num_committed - one.draft_lag_tokens)

    # --- processing --------------------------------------------------------------------------------------------------

    def process(self, step: Step, on_tokens: OnTokens | None = None) -> list[RequestOutput]:
        """Wait for a step and hand out its tokens; the answers that it finished."""
        done = step.event.wait()
        began_s = time.perf_counter()
        out = done.out
        self.counters.device_s += done.seconds
        if isinstance(out, PrefillOutput):
            self.counters.prefill_s += done.seconds
            runs = [[token] for token in out.tokens.tolist()]
        else:
            runs = self._read(step, out, done.seconds)
        present = [
            (b, one, run) for b, (one, run) in enumerate(zip(step.members, runs, strict=True)) if not one.is_removed
        ]
        taken = [(one, self._take(one, run, is_first=step.batch is None)) for _, one, run in present]
        for (b, _, _), (one, count) in zip(present, taken, strict=True):
            if out.logprobs is not None:
                width = len(out.logprobs.token_logprobs_T) // len(step.members)
                add_logprobs(one.state.output, out.logprobs, b * width, count)
            if isinstance(out, RoundOutput):
                set_draft_tree(one.state.output, out.trees, b, count)
                if one.kv.req_slot in out.broken_req_slots and one.state.output.finish_reason is None:
                    self._end(one.state, "error")
        finished = [one for one, _ in taken if one.state.output.finish_reason is not None]
        for one in finished:
            self._leave(one)
        if on_tokens is not None:
            for one, count in taken:
                on_tokens(one.state.output, count)
        self.counters.host_s += time.perf_counter() - began_s
        return [one.state.output for one in finished]

    def _read(self, step: Step, out: RoundOutput, seconds: float) -> list[list[int]]:
        """The accepted tokens of each member."""
        assert step.batch is not None, "a round has a batch"
        assert step.decision is not None, "and somebody chose its arm"
        counters, times = self.counters, out.times
        counters.rounds += 1
        counters.arm = step.decision.arm.name
        counters.draft_s += times.draft_s
        counters.verify_s += times.verify_s
        counters.extend_s += times.extend_s
        rows, num_slots = out.read_BC.tolist(), out.num_slots
        evidence, num_tokens = [], 0
        for b, (one, row) in enumerate(zip(step.members, rows, strict=True)):
            length, refused, trace = row[num_slots], row[num_slots + 1], row[num_slots + 2 :]
            one.growth_in_flight.popleft()
            one.num_committed += length
            if one.is_removed:
                continue
            one.state.output.accepted.append(length)
            one.state.output.offered.append(length - 1 + refused)
            drafted = bool(step.batch.drafts) and step.batch.drafts[b]
            one.state.output.proposed.append(step.decision.arm.nodes - 1 if drafted else 0)
            num_tokens += length
            told = trace_from_row(step.decision.arm, step.contexts[b], length, trace) if drafted else None
            one.state.output.traces.append(told)
            if told is not None:
                self._count(step.batch, length)
                evidence.append(told)
        if step.decision.load.contexts:
            # What a tree at any price takes is not what the policy chose.
            counted_s = None if step.kind.is_max else seconds
            self._own_policy(step.kind).observe(RoundReport(step.decision, counted_s, num_tokens, tuple(evidence)))
        return [row[: row[num_slots]] for row in rows]

    def _count(self, batch: RoundBatch, length: int) -> None:
        """One request's part in a round with trees."""
        assert batch.shape is not None, "a round that drafts has a shape"
        counters = self.counters
        counters.drafts += 1
        counters.draft_tokens += batch.shape.nodes - 1
        missing = batch.shape.depth - len(counters.accepted_per_position)
        counters.accepted_per_position += [0] * missing
        for position in range(length - 1):
            counters.accepted_per_position[position] += 1

    def _take(self, one: RunningRequest, run: Sequence[int], is_first: bool) -> int:
        """Hand tokens to the answer, cut where it ends; how many it took."""
        job, answer = one.state, one.state.output
        one.awaits_first_token = False
        now_s = time.perf_counter() - job.added_s
        count = 0
        for index, token in enumerate(run):
            answer.token_ids.append(token)
            answer.is_draft.append(index < len(run) - 1)
            answer.token_times_s.append(now_s)
            job.token_ids.append(token)
            count += 1
            finish = self._finish(job, token)
            if job.text_stream is not None:
                answer.text_ends.append(len(job.text_stream.text))
            if finish is not None:
                self._end(job, finish)
                break
        if not is_first and count < len(run):  # cut: nothing was refused there
            answer.accepted[-1] = count
            answer.offered[-1] = count - 1
        if job.text_stream is not None:
            answer.text = job.text_stream.text
        return count

    def _finish(self, job: RequestState, token: int) -> FinishReason | None:
        stop = job.output.request.stop
        ends = token in stop.ids or (token in self.target.info.eos_ids and not stop.ignore_eos)
        if job.text_stream is not None and not ends and job.text_stream.push(token):
            ends = True
        if ends:
            return "stop"
        return "length" if len(job.output.token_ids) >= job.max_new_tokens else None

    def _end(self, job: RequestState, finish: FinishReason) -> RequestOutput:
        answer = job.output
        answer.finish_reason = finish
        if job.text_stream is not None:
            job.text_stream.finish()
            answer.text = job.text_stream.text
        self.counters.finished[finish] = self.counters.finished.get(finish, 0) + 1
        self.counters.output_tokens += len(answer.token_ids)
        return answer
