"""The engine on a thread of its own: requests come from any thread, tokens go back through a callable.

any thread    submit, cancel ->  inbox  -> engine's thread: loop(engine, inbox) -> on_tokens(answer, count)
"""

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from eyas.base.environment import cache_directory
from eyas.base.errors import EyasError, UsageError
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.canary import CanaryExperiment, CanaryOptions, CanaryStatus
from eyas.engine.cost_profiler import build_budget, canary_costs
from eyas.engine.engine import SLOT_BLOCK, Engine, OnTokens
from eyas.engine.engine_thread import EngineThread
from eyas.engine.loops import RequestSource, overlap_loop, plain_loop
from eyas.engine.options import EngineOptions
from eyas.engine.request import MAIN, Request, RequestOutput
from eyas.kernels.aot_compile import CompileError, compile_pair
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.speculation.arms import Arm, default_arms
from eyas.speculation.budget import Budget
from eyas.speculation.policy import FixedArm, Policy
from eyas.speculation.speedup import SpeedupEstimate

IDLE_S = 3600.0
CONTEXT = 8192  # tokens, of a target that could hold more
MEMORY_SHARE = 0.25  # of the machine's memory, for keys and values, at most


class QueueFull(EyasError):
    """More requests than the service takes at a time; try again later."""


class Draining(EyasError):
    """The service is about to stop and takes no further requests."""


class Loop(Protocol):
    """plain_loop or overlap_loop."""

    def __call__(
        self, engine: Engine, source: RequestSource, on_tokens: OnTokens | None = None
    ) -> Iterator[RequestOutput]: ...


@dataclass(frozen=True)
class EngineStats:
    """What the service is doing and has done. kv_* in tokens; drafts, draft and accepted tokens as vLLM counts them:

    a draft is one request's round with a tree, its tokens are the tree's nodes without the root, accepted ones do not
    count the bonus; accepted_per_position[i]: drafts of which at least i + 1 tokens were accepted. speedup: over the
    same server without speculation, from its own rounds; None until it has measured both. arm: of the last round.
    trial: of a canary head, where there is one.
    """

    running: int
    waiting: int
    kv_used: int
    kv_cached: int
    kv_total: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_finished: dict[str, int]
    preemptions: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    speedup: SpeedupEstimate | None
    arm: str
    canary: CanaryStatus | None = None


class RequestInbox:
    """What other threads want of the engine, as a `Source`: calls that are made on the engine's thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._chores: deque[Callable[[Engine], None]] = deque()
        self._is_open = True

    def put(self, call: Callable[[Engine], None]) -> None:
        """Have this done before the next step."""
        self._calls.put(call)

    def put_when_idle(self, chore: Callable[[Engine], None]) -> None:
        """Have this done as soon as the engine has nothing else to do."""
        self._chores.append(chore)
        self._calls.put(lambda engine: None)  # in case it waits

    def close(self) -> None:
        """Nothing will come any more."""
        self._calls.put(None)

    def admit(self, engine: Engine, may_wait: bool) -> bool:
        while self._is_open:
            while may_wait and self._chores and self._calls.empty():
                self._chores.popleft()(engine)
            try:
                call = self._calls.get(timeout=IDLE_S) if may_wait else self._calls.get_nowait()
            except queue.Empty:
                return True
            may_wait = False
            if call is None:
                self._is_open = False
            else:
                call(engine)
        return self._is_open


class AsyncEngine:
    """Queues, runs, cancels, drains. An exception on the engine's thread ends all requests with finish "error"."""

    def __init__(
        self, engine: Engine, max_waiting: int, loop: Loop = overlap_loop, thread: EngineThread | None = None
    ) -> None:
        """max_waiting: requests beyond those that run at once, before `submit` refuses. thread: None for a new one."""
        self.engine = engine
        self.max_waiting = max_waiting
        self.failure: BaseException | None = None
        self.canary: CanaryExperiment | None = None
        self._loop = loop
        self._inbox = RequestInbox()
        self._open: dict[str, tuple[RequestOutput, OnTokens]] = {}
        self._changed = threading.Condition()
        self._is_draining = False
        self._thread = EngineThread() if thread is None else thread

    @property
    def arms(self) -> tuple[str, ...]:
        """What a round may run."""
        return tuple(arm.name for arm in self.engine.policy.arms)

    @property
    def max_draft_tokens(self) -> int:
        """The most draft tokens that a round can accept."""
        return max(arm.depth for arm in self.engine.policy.arms)

    def start(self) -> None:
        """From here on requests are answered."""
        self._thread.finish_with(self._run)

    def submit(self, request: Request, on_tokens: OnTokens) -> None:
        """Queue a request. InputError if it can never run; QueueFull; Draining.

        on_tokens(answer, count) is called on the engine's thread whenever the answer has grown by count tokens; the
        last call has answer.finish set.
        """
        self.engine.max_new_tokens(request)
        with self._changed:
            if self._is_draining or self.failure is not None:
                raise Draining("a request while the server stops", "a server that goes on", "ask another one")
            most = self.engine.max_running + self.max_waiting
            if len(self._open) >= most:
                raise QueueFull(f"{len(self._open)} requests at once", f"at most {most}", "try again later")
            assert request.id not in self._open, "each request has an id of its own"
            self._open[request.id] = (RequestOutput(request), on_tokens)

        def add(engine: Engine) -> None:
            head = MAIN if self.canary is None else self.canary.assign(request)
            self._open[request.id] = (engine.add(request, head), on_tokens)

        self._inbox.put(add)

    def when_idle(self, chore: Callable[[Engine], None]) -> None:
        """Have this done on the engine's thread, between requests."""
        self._inbox.put_when_idle(chore)

    def cancel(self, request_id: str) -> None:
        """End a request early; its last call has finish "cancelled". An unknown or finished id is ignored."""

        def cancel(engine: Engine) -> None:
            if engine.cancel(request_id) is not None:
                self._close(request_id)

        self._inbox.put(cancel)

    def drain(self, timeout_s: float) -> bool:
        """Take no more, let what is open finish, cancel what is open after so long; whether all finished by itself."""
        with self._changed:
            self._is_draining = True
            finished = self._changed.wait_for(lambda: not self._open, timeout_s)

        def cancel_all(engine: Engine) -> None:
            for request_id in list(self._open):
                if engine.cancel(request_id) is not None:
                    self._close(request_id)

        self._inbox.put(cancel_all)
        self._inbox.close()
        self._thread.join()
        self.engine.stream.close()
        return finished

    def stats(self) -> EngineStats:
        """A view from outside, while the engine goes on."""
        engine, counters = self.engine, self.engine.counters
        pool, cached = engine.kv_cache.pool, engine.kv_cache.prefix_cache.num_slots
        running, is_promoted = len(engine.running), self.canary is not None and self.canary.state == "promoted"
        policy = engine.canary_policy if is_promoted else engine.policy
        return EngineStats(
            running=running,
            waiting=max(len(self._open) - running, 0),
            kv_used=pool.num_slots - pool.num_free - cached,
            kv_cached=cached,
            kv_total=pool.num_slots,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            requests_finished=dict(counters.finished),
            preemptions=counters.preemptions,
            drafts=counters.drafts,
            draft_tokens=counters.draft_tokens,
            accepted_tokens=sum(counters.accepted_per_position),
            accepted_per_position=tuple(counters.accepted_per_position),
            speedup=policy.speed_up() if isinstance(policy, Budget) else None,
            arm=counters.arm,
            canary=None if self.canary is None else self.canary.status(),
        )

    def _run(self) -> None:
        try:
            for answer in self._loop(self.engine, self._inbox, self._tell):
                if self.canary is not None:
                    self.canary.observe(answer)
                self._forget(answer.request.id)
        except BaseException as error:  # whatever it was: nobody may wait for ever
            with self._changed:
                self.failure = error
            for request_id, (answer, _) in list(self._open.items()):
                answer.finish_reason = "error"
                self._close(request_id)
            raise

    def _tell(self, answer: RequestOutput, count: int) -> None:
        self._open[answer.request.id][1](answer, count)

    def _close(self, request_id: str) -> None:
        """The last call for a request that ended without a step."""
        answer, on_tokens = self._open[request_id]
        on_tokens(answer, 0)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        with self._changed:
            del self._open[request_id]
            self._changed.notify_all()


def build_async_engine(
    target: Target, draft: Eagle3Spec | None, options: EngineOptions, thread: EngineThread | None = None
) -> AsyncEngine:
    """An engine that will run on this thread; with a head its budget is measured here, or read from the cache.

    Forwards that were compiled before are used. UsageError for an arm that there is not, or a memory too small for one
    request.
    """
    device = target.model.device
    # A CPU that works for the host cannot work for the device: there the overlap costs a late round and hides nothing.
    overlaps = device.type == "cuda"
    if options.compile and device.type == "cpu":
        with contextlib.suppress(CompileError):  # `compile_in_background` finds the same and says why
            for head in _heads(draft):
                compile_pair(target, head, stored_only=True)
    context = min(options.context or CONTEXT, target.info.max_positions)
    arms = default_arms()
    if draft is not None:
        fixed = _arm(options.speculation, arms) if options.speculation != "auto" else None
        arms = arms if fixed is None else (fixed,)
        draft = replace(draft, arms=arms)
    engine = Engine(
        target,
        draft,
        options.slots,
        context,
        memory_tokens=options.memory_tokens or _memory_tokens(target, draft, options.slots, context),
    )
    if draft is not None:
        _set_policies(engine, arms)
    return AsyncEngine(engine, options.max_waiting, overlap_loop if overlaps else plain_loop, thread)


def start_canary(engine: AsyncEngine, options: CanaryOptions, log: Callable[[str], None]) -> None:
    """Before it starts: a share of its requests goes to the draft's other head."""
    arms = tuple(arm for arm in engine.engine.policy.arms if arm.shape is not None)
    costs = canary_costs(engine.engine, arms)
    engine.canary = CanaryExperiment(options, [arm.name for arm in arms], costs, log)


def compile_in_background(engine: AsyncEngine, log: Callable[[str], None]) -> None:
    """Compile what the cache did not have, on a thread; a failure is said and changes nothing.

    From then on rounds are faster. What they cost is measured again as soon as nobody waits for an answer.
    """
    target, drafter = engine.engine.target, engine.engine.runner.drafter
    drafters = (
        [one for one in (drafter, drafter.canary) if one is not None] if isinstance(drafter, Eagle3Drafter) else []
    )
    if target.compiled_forward is not None and all(one.head.compiled_forward is not None for one in drafters):
        return

    def measure(engine: Engine) -> None:
        if isinstance(engine.policy, Budget):
            _set_policies(engine, engine.policy.arms)

    def work() -> None:
        try:
            compile_pair(target, None)
            for one in drafters:
                compile_pair(target, one.head)
        except CompileError as error:
            log(f"forwards run as they are: {error.problem}")
        else:
            log("forwards run compiled from here on")
            engine.when_idle(measure)

    threading.Thread(target=work, name="compile", daemon=True).start()


def _set_policies(engine: Engine, arms: tuple[Arm, ...]) -> None:
    """One for each head: what they accept and cost differs."""
    engine.policy = _policy(engine, arms, is_canary=False)
    drafter = engine.runner.drafter
    if isinstance(drafter, Eagle3Drafter) and drafter.canary is not None:
        engine.canary_policy = _policy(engine, arms, is_canary=True)


def _policy(engine: Engine, arms: tuple[Arm, ...], is_canary: bool) -> Policy:
    return FixedArm(arms[0]) if len(arms) == 1 else build_budget(engine, arms, cache_directory(), is_canary=is_canary)


def _heads(draft: Eagle3Spec | None) -> list[Head | None]:
    """All heads, or None for none."""
    if draft is None:
        return [None]
    return [draft.head] if draft.canary is None else [draft.head, draft.canary.head]


def _arm(name: str, arms: Sequence[Arm]) -> Arm:
    found = [arm for arm in arms if arm.name == name]
    if not found:
        names = ", ".join(("auto", *(arm.name for arm in arms)))
        raise UsageError(f"--speculation {name}", f"one of {names}", "choose one of them")
    return found[0]


def _memory_tokens(target: Target, draft: Eagle3Spec | None, slots: int, context: int) -> int:
    """Enough for every slot to reach the context, as far as a share of the machine's memory holds it.

    A second head has keys and values of its own for every token.
    """
    facts, weight = target.info, next(target.model.parameters())
    token_bytes = 2 * facts.num_layers * facts.num_kv_heads * facts.head_dim * weight.element_size()
    if draft is not None and draft.canary is not None:
        second = draft.canary.head.config
        token_bytes += 2 * second.num_kv_heads * second.head_dim * weight.element_size()
    if weight.device.type == "cuda":
        room_bytes = torch.cuda.mem_get_info(weight.device)[0]
    else:
        room_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(slots * (context + SLOT_BLOCK), int(MEMORY_SHARE * room_bytes) // token_bytes)
