"""The engine: runs many requests at once with speculative decoding. The loops of `loops.py` call it.

    method    what it does
    launch    asks the scheduler for the next work, and queues it on the device stream; returns at once
    process   waits for the result of that work, appends its tokens to the outputs, and reports the round to the policy

The next work may be launched before the result of the last one is read. The host then knows only an upper bound of
each text's length; the device knows the true length.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from eyas.chat.detokenizer import TextStream
from eyas.drafters.drafter import DrafterSpec, EngineMemory
from eyas.engine.counters import EngineCounters
from eyas.engine.device_stream import DeviceStream, WorkEvent, stream_for
from eyas.engine.model_runner import ModelRunner
from eyas.engine.output_processor import OutputProcessor
from eyas.engine.request import Request, RequestOutput, max_new_tokens
from eyas.engine.request_state import RequestState
from eyas.engine.runner_data import PrefillOutput, RoundOutput
from eyas.engine.scheduler import SLOT_BLOCK, PrefillWork, RoundWork, Scheduler
from eyas.kernels.dispatch import attention_for_device, pack_target
from eyas.kernels.paged_attention import PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_cache_manager import KVCacheManager
from eyas.memory.kv_pool import KVPool
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm
from eyas.speculation.batch_load import FixedArm, Policy
from eyas.speculation.copy_index import MAX_COPY, CopyFinder

OnTokens = Callable[[RequestOutput, int], None]
"""The callback on_tokens(output, count): called after each work that appended `count` tokens to `output`."""


@dataclass(frozen=True, eq=False)
class Step:
    """Launched work, and the event that gives its result."""

    work: PrefillWork | RoundWork
    event: WorkEvent


class Engine:
    """Target, drafters and KV memory for up to `max_running` requests at once. Requirement: one thread calls it.

    Attributes:
        policies: The policies that choose the arm of each round: one for each drafter, or one for plain decoding if
            there is no drafter. The caller may replace them.
    """

    def __init__(  # noqa: PLR0913, the parts that callers replace
        self,
        target: Target,
        drafters: Sequence[DrafterSpec],
        max_running: int,
        max_context: int,
        *,
        memory_tokens: int | None = None,
        stream: DeviceStream | None = None,
        prepare: PrepareAttention | None = None,
        copies: CopyFinder | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Allocates the memory.

        Args:
            target: the loaded target.
            drafters: the drafters; empty for plain decoding. Requests use the first unless `add` gets another index.
            max_running: the number of requests that run at once.
            max_context: the maximum number of prompt and output tokens of a request together.
            memory_tokens: the number of tokens that KV memory holds; None for enough for every request to reach
                max_context.
            stream: the stream that runs the work; None for `stream_for` of the target's device.
            prepare: the attention; None for the fastest one on the target's device.
            copies: finds copies of earlier text, for policies that use them; None to search for none.
            kv_dtype: of the target's keys and values in memory; None for that of its weights.
        """
        pack_target(target)
        info, weight = target.info, next(target.model.parameters())
        self.target = target
        self.max_running = max_running
        self.max_context = min(max_context, info.max_positions)
        # KV slots after the text: the nodes of a round, and what the rounds before it may still add.
        shapes = [shape for drafter in drafters for shape in drafter.shapes]
        nodes, accepted = [shape.nodes for shape in shapes] or [1], [shape.max_accepted for shape in shapes] or [1]
        self.copies = copies
        if copies is not None:
            nodes, accepted = [max(nodes) + MAX_COPY], [*accepted, 1 + MAX_COPY]
        self.lookahead_slots = max(nodes) + 2 * max(accepted)
        width = self.max_context + self.lookahead_slots + SLOT_BLOCK
        num_tokens = max_running * width if memory_tokens is None else max(memory_tokens, width)
        # One request slot more than requests: rows that pad a batch belong to it.
        shape, table = (info.num_layers, info.num_kv_heads, info.head_dim), (max_running + 1, width)
        pool = KVPool(shape, num_tokens, table, weight, kv_dtype or weight.dtype)
        future_map = FutureMap(max_running + 1, width, weight.device)
        memory = EngineMemory(target, pool, future_map, prepare or attention_for_device(weight.device))
        self.counters = EngineCounters()
        self.kv_cache = KVCacheManager(pool, num_drafters=max(len(drafters), 1))
        self.runner = ModelRunner(memory, [drafter.build(memory) for drafter in drafters])
        self.stream: DeviceStream = stream_for(weight.device) if stream is None else stream
        self.policies: list[Policy] = [FixedArm(Arm("fixed", drafter.shape)) for drafter in drafters] or [FixedArm(OFF)]
        parts = self.kv_cache, self.policies, self.lookahead_slots, self.counters, copies
        # A CUDA graph is a round without prompt chunks.
        self.scheduler = Scheduler(*parts, shares_forwards=self.runner.graphs is None)
        self._outputs = OutputProcessor(info.eos_ids, self.counters, copies)
        self._num_reads = 0  # of `staging`, counted so far
        self._setups: list[Callable[[], None]] = []  # for the sampler, launched with the next work

    @property
    def is_idle(self) -> bool:
        """True if no request runs or waits."""
        return not self.scheduler.running and not self.scheduler.waiting

    @property
    def num_free(self) -> int:
        """The number of further requests that fit before `max_running` requests run or wait."""
        return self.max_running - len(self.scheduler.running) - len(self.scheduler.waiting)

    @property
    def bytes_per_token(self) -> int:
        """The bytes of a token in the memory of the target and of the drafters: keys, values and captured features."""
        pool = self.kv_cache.pool
        tensors = [pool.kv, *(getattr(drafter, "kv", None) for drafter in self.runner.drafters)]
        aux_bytes = 0 if pool.aux_ZL is None else pool.aux_ZL[0].nbytes
        return aux_bytes + sum(kv[:, :, 0].nbytes for kv in tensors if kv is not None)

    def max_new_tokens(self, request: Request) -> int:
        """Returns the maximum number of output tokens of the request. Raises InputError if the request is not valid."""
        return max_new_tokens(request, self.max_context, self.target.info.vocab_size)

    def add(self, request: Request, drafter: int = 0) -> RequestOutput:
        """Queues a request and returns its output, to which the engine appends tokens while it runs.

        Args:
            request: the request.
            drafter: index of the drafter for this request.

        Raises:
            InputError: the request is not valid, for example because its prompt is too long.
        """
        wants_text = request.wants_text or request.stop.strings
        stream = TextStream(self.target.tokenizer, request.stop.strings, request.shown_ids) if wants_text else None
        output, limit = RequestOutput(request, drafter=drafter), self.max_new_tokens(request)
        state = RequestState(output, limit, time.perf_counter(), list(request.prompt_ids), stream)
        self.scheduler.waiting.append(state)
        return output

    def cancel(self, request_id: str) -> RequestOutput | None:
        """Ends a request early. Results of its launched work are ignored.

        Returns:
            The output with finish reason "cancelled"; None if no request with this id is running or waiting.
        """
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
        """Launches the next prefill or round and returns at once. Returns None if there is nothing to launch."""
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
        """Waits for launched work and appends its tokens to the outputs.

        Args:
            step: the launched work.
            on_tokens: called for each output that got tokens.

        Returns:
            The outputs that have finished.
        """
        result = step.event.wait()
        began_s = time.perf_counter()
        num_reads = self.kv_cache.pool.staging.num_reads
        self.counters.device_syncs += num_reads - self._num_reads
        self._num_reads = num_reads
        if isinstance(step.work, PrefillWork):
            new_tokens, prefill, prefilled = [], step.work, result.out
        else:
            prefill, prefilled = step.work.prefill, result.out.prefill
            if result.out.node_counts_SDN2 is not None:
                scale = self.runner.drafters[step.work.kind.drafter].node_scale
                assert scale is not None, "only a drafter with a scale counts nodes"
                scale.learn(result.out.node_counts_SDN2.numpy())
            new_tokens, report = self._outputs.process_round(step.work, result.out, result.seconds)
            if report is not None:
                self.policies[step.work.kind.drafter].observe(report)
        if prefill is not None:
            new_tokens += self._outputs.process_prefill(prefill, prefilled)
        finished = [new.request for new in new_tokens if new.request.state.output.finish_reason is not None]
        for request in finished:
            self.scheduler.remove(request)
            if self.copies is not None:
                output = request.state.output
                self.copies.store(output.request.tenant, output.request.id, output.token_ids)
        if on_tokens is not None:
            for new in new_tokens:
                on_tokens(new.request.state.output, new.count)
        self.counters.host_s += time.perf_counter() - began_s
        return [request.state.output for request in finished]

    def _admit(self) -> None:
        """Admits waiting requests, and queues the initialization of their sampler state for the next work."""
        for request in self.scheduler.admit():
            state = request.state
            text = tuple(state.token_ids)
            self._setups.append(partial(self.runner.sampler.admit, request.kv.req_slot, state.output.request, text))
            if not state.has_run:
                state.has_run = True
                state.output.num_cached_tokens = request.kv.num_shared
                state.output.queue_s = time.perf_counter() - state.added_s
                self.counters.cached_tokens += request.kv.num_shared
                self.counters.prompt_tokens += len(text)
