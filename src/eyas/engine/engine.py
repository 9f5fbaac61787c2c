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

from eyas.drafters.eagle3 import DraftPlan
from eyas.engine.detokenizer import TextOut
from eyas.engine.device_stream import Event, Stream, stream_for
from eyas.engine.model_runner import Batch, Piece, PrefillOut, RoundOut, Runner
from eyas.engine.request import CANARY, MAIN, Answer, Finish, Request, limit_of
from eyas.engine.sequences import (
    Counters,
    Job,
    Running,
    Step,
    Turn,
    next_turn,
    num_logprobs,
    tell_logprobs,
    tell_tree,
    wants_trees,
)
from eyas.kernels.dispatch import prepare_for
from eyas.kernels.paged_attention import Prepare
from eyas.memory.future_map import Relay
from eyas.memory.kv_cache_manager import Memory
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.speculation.acceptance_trace import evidence_of
from eyas.speculation.arms import OFF, Arm, Load
from eyas.speculation.budget import RoundReport
from eyas.speculation.policy import OneArm, Policy

OnTokens = Callable[[Answer, int], None]
"""Called with an answer and the number of its newest tokens, after every piece of work that gave it some."""

CHUNK = 512  # the most prompt tokens of one prefill: running answers wait for no more than this at a time
BLOCK = 32  # columns of a line get their slots so many at a time


class Engine:
    """Runs up to `slots` requests at once."""

    def __init__(
        self,
        target: Target,
        draft: DraftPlan | None,
        slots: int,
        context: int,
        *,
        memory_tokens: int | None = None,
        stream: Stream | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """context: the most tokens, prompt and answer together, that any request will reach.

        memory_tokens: tokens that the key-value memory holds; None: enough for every request to reach the context.
        """
        facts, weight = target.info, next(target.model.parameters())
        self.target = target
        self.slots = slots
        self.context = min(context, facts.max_positions)
        shapes = () if draft is None else draft.shapes
        # Columns behind the text: the nodes of a round, and what the rounds before it may still add.
        self.room = max((shape.nodes + 2 * shape.max_accepted for shape in shapes), default=4)
        width = self.context + self.room + BLOCK
        tokens = slots * width if memory_tokens is None else max(memory_tokens, width)
        sizes = (facts.num_layers, facts.num_kv_heads, facts.head_dim)
        pool = KVPool(sizes, tokens, (slots + 1, width), weight)  # and a spare line
        relay = Relay(slots + 1, width, weight.device)
        prepare = prepare_for(weight.device) if prepare is None else prepare
        drafter = None if draft is None else draft.drafter(target, pool, relay, prepare)
        self.memory = Memory(pool, num_heads=2)
        self.runner = Runner(target, drafter, pool, relay, prepare)
        self.stream: Stream = stream_for(weight.device) if stream is None else stream
        self.policy: Policy = OneArm(OFF if draft is None else Arm("fixed", draft.shape))
        self.canary_policy: Policy = self.policy
        self.waiting: deque[Job] = deque()
        self.running: list[Running] = []
        self.counters = Counters()
        self._setups: list[Callable[[], None]] = []
        self._just_filled = False
        self._turn = Turn()
        self._began_s = 0.0

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting

    @property
    def has_room(self) -> bool:
        """Whether a further request would be taken up before any other."""
        return len(self.running) + len(self.waiting) < self.slots

    def limit(self, request: Request) -> int:
        """How many tokens the request may get; InputError if it asks for none or there is no room for one."""
        return limit_of(request, self.context, self.target.info.vocab_size)

    def add(self, request: Request, head: str = MAIN) -> Answer:
        """Take up a request, for one of the heads; it runs as soon as there is room. InputError if it can never run."""
        job = Job(
            Answer(request, head=head),
            self.limit(request),
            time.perf_counter(),
            list(request.prompt_ids),
            TextOut(self.target.tokenizer, request.stop.strings)
            if request.wants_text or request.stop.strings
            else None,
        )
        self.waiting.append(job)
        return job.answer

    def cancel(self, request_id: str) -> Answer | None:
        """End a request; its answer, or None if there is no such one. What is launched for it is not read."""
        for one in self.running:
            if one.job.answer.request.id == request_id:
                self._leave(one)
                return self._end(one.job, "cancelled")
        for job in self.waiting:
            if job.answer.request.id == request_id:
                self.waiting.remove(job)
                return self._end(job, "cancelled")
        return None

    def forget(self) -> None:
        """Empty the prefix cache: what comes next is computed anew. For measurements."""
        self.memory.forget()

    def check(self) -> None:
        """Assert what must hold between steps, as far as the host can see it."""
        self.memory.check([one.holding for one in self.running])
        for one in self.running:
            assert one.known <= one.bound <= len(one.holding.slots), (one.known, one.bound, len(one.holding.slots))
            if not one.growths and one.is_filled and not one.awaits_first:
                assert one.known == len(one.job.text) - 1, "all but the root is committed"

    # --- launching ---------------------------------------------------------------------------------------------------

    def launch(self) -> Step | None:
        """Queue the next piece of work: prefills and rounds take turns, so that neither waits long for the other."""
        self._began_s = time.perf_counter()
        self._admit()
        filling = [one for one in self.running if not one.is_filled]
        going = [one for one in self.running if one.is_filled and one.may_go_on]
        if filling and not (going and self._just_filled):
            step = self._launch_prefill(filling)
        else:
            step = self._launch_round(going) if going else None
        return step

    def _admit(self) -> None:
        """Start what waits, in order, while there are lines and memory."""
        while self.waiting and self.memory.has_line:
            job = self.waiting[0]
            # The row of a prompt's last token decides the first answer token; of a preempted text the root is known.
            goal = len(job.text) - (not job.is_new)
            # Those that run need room to grow for a while, or one of them would be preempted at once.
            spare, head = self.room * len(self.running), int(job.answer.head == CANARY)
            holding = self.memory.begin(job.text[:goal], self.room, spare, head)
            if holding is None:
                return
            self.waiting.popleft()
            one = Running(job, holding, goal, holding.shared, known=holding.shared, lag=holding.unread)
            self.running.append(one)
            self._setups.append(partial(self.runner.sampler.admit, holding.line, job.answer.request, tuple(job.text)))
            if not job.has_run:
                job.has_run = True
                job.answer.cached = holding.shared
                self.counters.cached_tokens += holding.shared
                self.counters.prompt_tokens += len(job.text)

    def _launch_prefill(self, filling: Sequence[Running]) -> Step:
        room, pieces, members = CHUNK, [], []
        for one in filling:
            end = min(one.goal, one.filled + room)
            if end == one.filled and one.begun:
                continue
            room -= end - one.filled
            samples = end == one.goal and one.job.is_new
            pieces.append(Piece(one.holding.line, tuple(one.job.text), one.filled, end, not one.begun, samples))
            one.lag += end - one.filled
            one.begun, one.filled, one.known = True, end, end
            if end == one.goal:
                self.memory.share(one.holding, one.job.text[: one.goal])
            if samples:
                one.awaits_first = True
                members.append(one)
        self._just_filled = True
        asked = num_logprobs(members)
        return Step(tuple(members), self._queue(lambda: self.runner.prefill(pieces, asked)))

    def _launch_round(self, going: Sequence[Running]) -> Step | None:
        self._just_filled = False
        self._turn, going = next_turn(going, self._turn)
        most = max((arm.nodes for arm in self.policy.arms), default=1)
        for one in going:
            while not one.left and not self.memory.grow(one.holding, one.bound + most, BLOCK):
                self._preempt(self.running[-1])
        members = tuple(one for one in going if not one.left)
        if not members:
            return None
        follows = [one.job.answer.request.speculation != "off" for one in members]
        contexts = tuple(one.known for one in members)
        load = Load(
            contexts=tuple(compress(contexts, follows)),
            lags=tuple(one.lag for one in compress(members, follows)),
            fixed=tuple(context for context, may in zip(contexts, follows, strict=True) if not may),
        )
        turn = self._turn
        choice = self._policy_of(load).choose(load)
        wish = iter(choice.drafts)
        drafts = tuple(next(wish) if may else False for may in follows)
        shape, lines = choice.arm.shape, tuple(one.holding.line for one in members)
        batch = Batch(
            lines, num_logprobs=num_logprobs(members), wants_trees=wants_trees(members), is_canary=turn.head == CANARY
        )
        if shape is not None:
            nodes = sum(shape.nodes if drafting else 1 for drafting in drafts)
            lags = tuple(one.lag for one in compress(members, drafts))
            batch = replace(batch, shape=shape, nodes=nodes, drafts=drafts, lags=lags)
        for one, drafting in zip(members, drafts, strict=True):
            one.growths.append(shape.max_accepted if shape is not None and drafting else 1)
            one.lag = 0 if drafting else one.lag + 1
            if drafting and one.holding.unread:
                self.memory.mark_read(one.holding)
        return Step(members, self._queue(lambda: self.runner.round(batch)), batch, choice, contexts, turn)

    def _policy_of(self, load: Load) -> Policy:
        """Who decides for this round: nobody has to where all wish for the same."""
        if self._turn.is_max:
            return OneArm(self.policy.arms[-1])
        return self._own_policy(self._turn) if load.contexts else OneArm(OFF)

    def _own_policy(self, turn: Turn) -> Policy:
        return self.canary_policy if turn.head == CANARY else self.policy

    def _queue(self, work: Callable[[], PrefillOut | RoundOut]) -> Event:
        """Launch the work behind what the device must be told first."""
        writes, setups = self.memory.writes(), self._setups
        self._setups = []

        def run() -> PrefillOut | RoundOut:
            self.runner.write(writes)
            for setup in setups:
                setup()
            return work()

        self.counters.host_s += time.perf_counter() - self._began_s
        return self.stream.launch(run)

    def _preempt(self, one: Running) -> None:
        """Give up its memory; it waits again, before all others, and goes on with the tokens that are read."""
        self._leave(one)
        self.waiting.appendleft(one.job)
        self.counters.preemptions += 1

    def _leave(self, one: Running) -> None:
        one.left = True
        self.running.remove(one)
        # Of a text that ended inside a run, more is committed than the answer kept: only what is text stays known.
        kept = min(one.known, len(one.job.text) - 1) + 1
        self.memory.end(one.holding, one.job.text[:kept], one.known - one.lag)

    # --- processing --------------------------------------------------------------------------------------------------

    def process(self, step: Step, on_tokens: OnTokens | None = None) -> list[Answer]:
        """Wait for a step and hand out its tokens; the answers that it finished."""
        done = step.event.wait()
        began_s = time.perf_counter()
        out = done.out
        self.counters.device_s += done.seconds
        if isinstance(out, PrefillOut):
            self.counters.prefill_s += done.seconds
            runs = [[token] for token in out.tokens.tolist()]
        else:
            runs = self._read(step, out, done.seconds)
        present = [(b, one, run) for b, (one, run) in enumerate(zip(step.members, runs, strict=True)) if not one.left]
        taken = [(one, self._take(one, run, is_first=step.batch is None)) for _, one, run in present]
        for (b, _, _), (one, count) in zip(present, taken, strict=True):
            if out.logprobs is not None:
                width = len(out.logprobs.token_logprobs_T) // len(step.members)
                tell_logprobs(one.job.answer, out.logprobs, b * width, count)
            if isinstance(out, RoundOut):
                tell_tree(one.job.answer, out.trees, b, count)
                if one.holding.line in out.broken and one.job.answer.finish is None:
                    self._end(one.job, "error")
        finished = [one for one, _ in taken if one.job.answer.finish is not None]
        for one in finished:
            self._leave(one)
        if on_tokens is not None:
            for one, count in taken:
                on_tokens(one.job.answer, count)
        self.counters.host_s += time.perf_counter() - began_s
        return [one.job.answer for one in finished]

    def _read(self, step: Step, out: RoundOut, seconds: float) -> list[list[int]]:
        """The accepted tokens of each member."""
        assert step.batch is not None, "a round has a batch"
        assert step.choice is not None, "and somebody chose its arm"
        counters, times = self.counters, out.times
        counters.rounds += 1
        counters.arm = step.choice.arm.name
        counters.draft_s += times.draft_s
        counters.verify_s += times.verify_s
        counters.extend_s += times.extend_s
        rows, num_slots = out.read_BC.tolist(), out.num_slots
        evidence, num_tokens = [], 0
        for b, (one, row) in enumerate(zip(step.members, rows, strict=True)):
            length, refused, trace = row[num_slots], row[num_slots + 1], row[num_slots + 2 :]
            one.growths.popleft()
            one.known += length
            if one.left:
                continue
            one.job.answer.accepted.append(length)
            one.job.answer.offered.append(length - 1 + refused)
            drafted = bool(step.batch.drafts) and step.batch.drafts[b]
            one.job.answer.proposed.append(step.choice.arm.nodes - 1 if drafted else 0)
            num_tokens += length
            told = evidence_of(step.choice.arm, step.contexts[b], length, trace) if drafted else None
            one.job.answer.evidence.append(told)
            if told is not None:
                self._count(step.batch, length)
                evidence.append(told)
        if step.choice.load.contexts:
            # What a tree at any price takes is not what the policy chose.
            counted_s = None if step.turn.is_max else seconds
            self._own_policy(step.turn).observe(RoundReport(step.choice, counted_s, num_tokens, tuple(evidence)))
        return [row[: row[num_slots]] for row in rows]

    def _count(self, batch: Batch, length: int) -> None:
        """One request's part in a round with trees."""
        assert batch.shape is not None, "a round that drafts has a shape"
        counters = self.counters
        counters.drafts += 1
        counters.draft_tokens += batch.shape.nodes - 1
        missing = batch.shape.depth - len(counters.accepted_per_position)
        counters.accepted_per_position += [0] * missing
        for position in range(length - 1):
            counters.accepted_per_position[position] += 1

    def _take(self, one: Running, run: Sequence[int], is_first: bool) -> int:
        """Hand tokens to the answer, cut where it ends; how many it took."""
        job, answer = one.job, one.job.answer
        one.awaits_first = False
        now_s = time.perf_counter() - job.added_s
        count = 0
        for index, token in enumerate(run):
            answer.token_ids.append(token)
            answer.drafted.append(index < len(run) - 1)
            answer.time_s.append(now_s)
            job.text.append(token)
            count += 1
            finish = self._finish(job, token)
            if job.out is not None:
                answer.text_ends.append(len(job.out.text))
            if finish is not None:
                self._end(job, finish)
                break
        if not is_first and count < len(run):  # cut: nothing was refused there
            answer.accepted[-1] = count
            answer.offered[-1] = count - 1
        if job.out is not None:
            answer.text = job.out.text
        return count

    def _finish(self, job: Job, token: int) -> Finish | None:
        stop = job.answer.request.stop
        ends = token in stop.ids or (token in self.target.info.eos_ids and not stop.ignore_eos)
        if job.out is not None and not ends and job.out.push(token):
            ends = True
        if ends:
            return "stop"
        return "length" if len(job.answer.token_ids) >= job.limit else None

    def _end(self, job: Job, finish: Finish) -> Answer:
        answer = job.answer
        answer.finish = finish
        if job.out is not None:
            job.out.finish()
            answer.text = job.out.text
        self.counters.finished[finish] = self.counters.finished.get(finish, 0) + 1
        self.counters.output_tokens += len(answer.token_ids)
        return answer
