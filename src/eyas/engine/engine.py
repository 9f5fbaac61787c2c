"""The engine: runs many requests at once with speculative decoding. Loops and the async engine drive it.

    launch    scheduler: what comes next      -> work on the device stream; returns at once
    process   wait for the work's result      -> output processor: tokens, finished outputs; policy learns

Other work may be launched between the two: the host knows an upper bound of each length, the device the true one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from eyas.drafters.drafter import DrafterSpec
from eyas.engine.counters import EngineCounters
from eyas.engine.detokenizer import TextStream
from eyas.engine.device_stream import DeviceStream, WorkEvent, stream_for
from eyas.engine.model_runner import ModelRunner, PrefillOutput, RoundOutput
from eyas.engine.output_processor import OutputProcessor
from eyas.engine.request import Request, RequestOutput, max_new_tokens
from eyas.engine.request_state import RequestState
from eyas.engine.scheduler import SLOT_BLOCK, PrefillWork, RoundWork, Scheduler
from eyas.kernels.dispatch import attention_for_device
from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_cache_manager import KVCacheManager
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import FixedArm, Policy

OnTokens = Callable[[RequestOutput, int], None]
"""Called with an output and the number of its newest tokens, after each piece of work that gave it some."""


@dataclass(frozen=True, eq=False)
class Step:
    """Launched work, and the event to wait for before reading its result."""

    work: PrefillWork | RoundWork
    event: WorkEvent


class Engine:
    """Target, drafters and KV memory for up to `max_running` requests at once. One thread calls it.

    policies: one for each drafter (without drafters one for plain decoding); they choose the arm of each round.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[DrafterSpec],
        max_running: int,
        max_context: int,
        *,
        memory_tokens: int | None = None,
        stream: DeviceStream | None = None,
        prepare: PrepareAttention | None = None,
    ) -> None:
        """Allocates the memory.

        Args:
            drafters: the first drafts for all requests that name no other; empty for plain decoding.
            max_context: tokens of prompt and output of a request, at most.
            memory_tokens: tokens that KV memory holds; None for enough to let every request reach max_context.
            stream: where work runs; None for the device's own.
            prepare: attention; None for the fastest that the device has.
        """
        info, weight = target.info, next(target.model.parameters())
        self.target = target
        self.max_running = max_running
        self.max_context = min(max_context, info.max_positions)
        # KV slots after the text: the nodes of a round, and what the rounds before it may still add.
        shapes = [shape for drafter in drafters for shape in drafter.shapes]
        self.lookahead_slots = max((shape.nodes + 2 * shape.max_accepted for shape in shapes), default=4)
        width = self.max_context + self.lookahead_slots + SLOT_BLOCK
        num_tokens = max_running * width if memory_tokens is None else max(memory_tokens, width)
        # One request slot more than requests: rows that pad a batch belong to it.
        pool = KVPool((info.num_layers, info.num_kv_heads, info.head_dim), num_tokens, (max_running + 1, width), weight)
        future_map = FutureMap(max_running + 1, width, weight.device)
        prepare = attention_for_device(weight.device) if prepare is None else prepare
        built = [drafter.build(target, pool, future_map, prepare) for drafter in drafters]
        self.counters = EngineCounters()
        self.kv_cache = KVCacheManager(pool, num_drafters=max(len(drafters), 1))
        self.runner = ModelRunner(target, built, pool, future_map, prepare)
        self.stream: DeviceStream = stream_for(weight.device) if stream is None else stream
        self.policies: list[Policy] = [FixedArm(Arm("fixed", drafter.shape)) for drafter in drafters] or [FixedArm(OFF)]
        self.scheduler = Scheduler(self.kv_cache, self.policies, self.lookahead_slots, self.counters)
        self._outputs = OutputProcessor(info.eos_ids, self.counters)
        self._setups: list[Callable[[], None]] = []  # for the sampler, launched with the next work

    @property
    def is_idle(self) -> bool:
        """True if no request runs or waits."""
        return not self.scheduler.running and not self.scheduler.waiting

    @property
    def has_capacity(self) -> bool:
        """True if a further request would not wait behind others."""
        return len(self.scheduler.running) + len(self.scheduler.waiting) < self.max_running

    def max_new_tokens(self, request: Request) -> int:
        """Returns the maximum number of tokens for the request. Raises InputError if it can never run."""
        return max_new_tokens(request, self.max_context, self.target.info.vocab_size)

    def add(self, request: Request, drafter: int = 0) -> RequestOutput:
        """Queues a request and returns its output, which grows from now on. Raises InputError if it can never run."""
        wants_text = request.wants_text or request.stop.strings
        state = RequestState(
            RequestOutput(request, drafter=drafter),
            self.max_new_tokens(request),
            time.perf_counter(),
            list(request.prompt_ids),
            TextStream(self.target.tokenizer, request.stop.strings) if wants_text else None,
        )
        self.scheduler.waiting.append(state)
        return state.output

    def cancel(self, request_id: str) -> RequestOutput | None:
        """Ends a request and returns its output; None if there is no such request. Launched work is not read for it."""
        for request in self.scheduler.running:
            if request.state.output.request.id == request_id:
                self.scheduler.remove(request)
                return self._outputs.finish(request.state, "cancelled")
        for state in self.scheduler.waiting:
            if state.output.request.id == request_id:
                self.scheduler.waiting.remove(state)
                return self._outputs.finish(state, "cancelled")
        return None

    def launch(self) -> Step | None:
        """Launches the next piece of work and returns at once; None if there is nothing to do."""
        began_s = time.perf_counter()
        self._admit()
        work = self.scheduler.next_work()
        if work is None:
            return None
        writes, setups = self.kv_cache.take_table_writes(), self._setups
        self._setups = []

        def run() -> PrefillOutput | RoundOutput:
            self.runner.write_table(writes)
            for setup in setups:
                setup()
            if isinstance(work, PrefillWork):
                return self.runner.prefill(work.chunks, work.num_logprobs)
            return self.runner.round(work.batch)

        self.counters.host_s += time.perf_counter() - began_s
        return Step(work, self.stream.launch(run))

    def process(self, step: Step, on_tokens: OnTokens | None = None) -> list[RequestOutput]:
        """Waits for a step, hands out its tokens, and returns the outputs that it finished."""
        result = step.event.wait()
        began_s = time.perf_counter()
        self.counters.device_s += result.seconds
        if isinstance(step.work, PrefillWork):
            self.counters.prefill_s += result.seconds
            new_tokens = self._outputs.process_prefill(step.work, result.out)
        else:
            new_tokens, report = self._outputs.process_round(step.work, result.out, result.seconds)
            if report is not None:
                self.policies[step.work.kind.drafter].observe(report)
        finished = [new.request for new in new_tokens if new.request.state.output.finish_reason is not None]
        for request in finished:
            self.scheduler.remove(request)
        if on_tokens is not None:
            for new in new_tokens:
                on_tokens(new.request.state.output, new.count)
        self.counters.host_s += time.perf_counter() - began_s
        return [request.state.output for request in finished]

    def clear_prefix_cache(self) -> None:
        """Empties the prefix cache, for measurements."""
        self.kv_cache.clear_prefix_cache()

    def check(self) -> None:
        """Asserts the invariants that hold between steps, as far as the host sees them."""
        running = self.scheduler.running
        self.kv_cache.check([request.kv for request in running])
        for request in running:
            num_slots = len(request.kv.slots)
            assert request.num_committed <= request.max_committed <= num_slots, (request.num_committed, num_slots)
            if not request.growth_in_flight and request.is_prefilled and not request.awaits_first_token:
                assert request.num_committed == len(request.state.token_ids) - 1, "all but the root is committed"

    def _admit(self) -> None:
        """Admits waiting requests and queues their sampler settings."""
        for request in self.scheduler.admit():
            state = request.state
            text = tuple(state.token_ids)
            self._setups.append(partial(self.runner.sampler.admit, request.kv.req_slot, state.output.request, text))
            if not state.has_run:
                state.has_run = True
                state.output.num_cached_tokens = request.kv.num_shared
                self.counters.cached_tokens += request.kv.num_shared
                self.counters.prompt_tokens += len(text)
