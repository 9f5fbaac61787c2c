"""Builds an AsyncEngine for a server: sizes KV memory, measures the budget, and compiles forwards in the background."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from eyas.base.environment import cache_directory, memory_bytes
from eyas.base.errors import UsageError
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.async_engine import AsyncEngine, EngineThread
from eyas.engine.canary import CanaryExperiment, CanaryOptions
from eyas.engine.cost_profiler import build_budget, canary_costs
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop, plain_loop
from eyas.engine.scheduler import SLOT_BLOCK
from eyas.kernels.aot_compile import CompileError, compile_pair
from eyas.model.target import Target
from eyas.speculation.arms import Arm, default_arms
from eyas.speculation.batch_load import FixedArm, Policy
from eyas.speculation.budget import Budget

MAX_CONTEXT = 8192  # tokens, for a target that could hold more
MEMORY_SHARE = 0.25  # of the machine's memory, for KV memory, at most


@dataclass(frozen=True)
class EngineOptions:
    """The operator's choices, with the defaults of `eyas serve`.

    slots: requests that run at once. context: tokens of prompt and output; None for the target's own, at most
    MAX_CONTEXT. memory_tokens: tokens of KV memory; None for enough for all slots, as far as the machine allows.
    max_waiting: requests in the queue before a further one is refused. speculation: "auto", or the name of an arm for
    every round. compile: run compiled forwards on a CPU (kernels/aot_compile.py).
    """

    slots: int = 16
    context: int | None = None
    memory_tokens: int | None = None
    max_waiting: int = 256
    speculation: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("context", 2), ("memory_tokens", 2), ("max_waiting", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} {value} is too low", f"Set it to {least} or more")


def build_async_engine(
    target: Target, heads: Sequence[Eagle3Spec], options: EngineOptions, thread: EngineThread | None = None
) -> AsyncEngine:
    """Returns an engine that will run on this thread.

    With a head, round costs are measured here or read from the cache. Forwards that were compiled before are loaded.

    Args:
        heads: the main head and a canary; empty for plain decoding.
        thread: the thread that loaded the target; None for a new one.

    Raises:
        UsageError: options.speculation is not an arm.
    """
    device = target.model.device
    if options.compile and device.type == "cpu":
        with contextlib.suppress(CompileError):  # `compile_in_background` finds the same error and logs it
            for head in heads or [None]:
                compile_pair(target, None if head is None else head.head, stored_only=True)
    context = min(options.context or MAX_CONTEXT, target.info.max_positions)
    arms = default_arms()
    if heads and options.speculation != "auto":
        arms = (_arm_named(options.speculation, arms),)
    heads = [replace(head, shape=heads[0].shape, arms=arms) for head in heads]
    memory_tokens = options.memory_tokens or _memory_tokens(target, heads, options.slots, context)
    engine = Engine(target, heads, options.slots, context, memory_tokens=memory_tokens)
    if heads:
        _set_policies(engine, arms)
    # A CPU that works for the host cannot work for the device: there the overlap hides nothing.
    loop = overlap_loop if device.type == "cuda" else plain_loop
    return AsyncEngine(engine, options.max_waiting, loop, thread)


def start_canary(engine: AsyncEngine, options: CanaryOptions, log: Callable[[str], None]) -> None:
    """Prepares the canary experiment, which gives the second head a share of the requests.

    Call it before the engine starts.
    """
    arms = tuple(arm for arm in engine.engine.policies[0].arms if arm.shape is not None)
    costs = canary_costs(engine.engine, arms)
    engine.canary = CanaryExperiment(options, [arm.name for arm in arms], costs, log)


def compile_in_background(engine: AsyncEngine, log: Callable[[str], None]) -> None:
    """Compiles, on a thread, the forwards that the cache does not hold. A failure is logged and changes nothing else.

    Rounds are faster from then on, so their costs are measured again as soon as no request is open.
    """
    target = engine.engine.target
    heads = [drafter.head for drafter in engine.engine.runner.drafters if isinstance(drafter, Eagle3Drafter)]
    if target.compiled_forward is not None and all(head.compiled_forward is not None for head in heads):
        return

    def measure(engine: Engine) -> None:
        if isinstance(engine.policies[0], Budget):
            _set_policies(engine, engine.policies[0].arms)

    def work() -> None:
        try:
            compile_pair(target, None)
            for head in heads:
                compile_pair(target, head)
        except CompileError as error:
            log(f"Forwards run uncompiled: {error.problem}.")
        else:
            log("Forwards run compiled from now on.")
            engine.when_idle(measure)

    threading.Thread(target=work, name="compile", daemon=True).start()


def _set_policies(engine: Engine, arms: tuple[Arm, ...]) -> None:
    """Gives each head a policy of its own, because acceptance and costs differ."""

    def policy(drafter: int) -> Policy:
        return FixedArm(arms[0]) if len(arms) == 1 else build_budget(engine, arms, cache_directory(), drafter=drafter)

    engine.policies[:] = [policy(drafter) for drafter in range(len(engine.runner.drafters))]


def _arm_named(name: str, arms: Sequence[Arm]) -> Arm:
    for arm in arms:
        if arm.name == name:
            return arm
    names = ", ".join(("auto", *(arm.name for arm in arms)))
    raise UsageError(f"--speculation {name} is not a known arm", f"Choose one of {names}")


def _memory_tokens(target: Target, heads: Sequence[Eagle3Spec], slots: int, context: int) -> int:
    """Returns the size of the KV memory in tokens: `context` for every slot, but at most MEMORY_SHARE of the memory."""
    info, weight = target.info, next(target.model.parameters())
    token_bytes = 2 * info.num_layers * info.num_kv_heads * info.head_dim * weight.element_size()
    for head in heads:
        config = head.head.config
        token_bytes += 2 * config.num_kv_heads * config.head_dim * weight.element_size()
    if weight.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(weight.device)[0]
    else:
        free_bytes = memory_bytes()
    return min(slots * (context + SLOT_BLOCK), int(MEMORY_SHARE * free_bytes) // token_bytes)
