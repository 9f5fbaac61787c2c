"""Builds an AsyncEngine for a server: sizes KV memory, measures the budget, and compiles forwards in the background."""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from eyas.base.config import require_range
from eyas.base.environment import cache_directory, memory_bytes
from eyas.base.errors import UsageError
from eyas.drafters.head_spec import HeadSpec
from eyas.engine.async_engine import AsyncEngine, EngineThread
from eyas.engine.canary import CanaryExperiment, CanaryOptions
from eyas.engine.cost_profiler import build_budget, canary_costs, capture_graphs
from eyas.engine.engine import Engine
from eyas.engine.loops import overlap_loop, plain_loop
from eyas.engine.scheduler import PREFILL_CHUNK, SLOT_BLOCK
from eyas.kernels.aot_compile import CompileError, compile_pair
from eyas.kernels.compiled_package import attend_to_text
from eyas.model.attention import PackedAttention
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.speculation.arms import OFF, Arm, default_arms
from eyas.speculation.batch_load import FixedArm, Policy
from eyas.speculation.budget import Budget
from eyas.speculation.copy_index import CopyFinder
from eyas.speculation.round_costs import TIME_LIMIT_S
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms

MAX_CONTEXT = 8192  # tokens, for a target that could hold more
# Of a CPU's memory, the share of KV memory at most; of a GPU's, the share of weights, KV memory and forwards together.
CPU_SHARE, CUDA_SHARE = 0.25, 0.9
POOL_TOKENS = 100_000  # of the outputs of all tenants; 10 to 20 MB


@dataclass(frozen=True)
class EngineOptions:
    """The options of `eyas serve` for the engine.

    Attributes:
        slots: The number of requests that run at once.
        context: The maximum number of prompt and output tokens of a request; None for the target's own limit, but at
            most MAX_CONTEXT.
        memory_tokens: The number of tokens that KV memory holds; None for what `memory_share` allows.
        memory_share: The share of the memory to use; None for CPU_SHARE or CUDA_SHARE.
        max_waiting: The number of waiting requests beyond which new requests are refused.
        speculation: "auto" for a budget, or the name of the arm that all rounds run.
        compile: True to run compiled forwards (kernels/aot_compile.py).
        copies: The texts from which rounds with speculation "auto" copy drafts: none ("off"), the request's own
            ("request"), or also the newest outputs of the same tenant ("key"). None: "request" with a head, else "off".
        kv_dtype: "fp8" for keys and values in half of the memory; None for the dtype of the weights.
    """

    slots: int = 16
    context: int | None = None
    memory_tokens: int | None = None
    memory_share: float | None = None
    max_waiting: int = 256
    speculation: str = "auto"
    compile: bool = False
    copies: str | None = None
    kv_dtype: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("context", 2), ("memory_tokens", 2), ("max_waiting", 0)):
            require_range(f"--{name.replace('_', '-')}", getattr(self, name), least)
        require_range("--memory-share", self.memory_share, 0, 1, exclude_low=True)


def build_async_engine(
    target: Target, heads: Sequence[HeadSpec], options: EngineOptions, thread: EngineThread | None = None
) -> AsyncEngine:
    """Builds the engine of a server. It does not run before `AsyncEngine.start`.

    With a head and speculation "auto", this function measures round costs or reads them from the cache. On a CPU it
    loads compiled forwards from the cache, but does not compile.

    Args:
        target: the loaded target.
        heads: the main head, and optionally a canary head; empty for plain decoding.
        options: the options of the server.
        thread: the thread that has loaded the target; None to start a new thread.

    Raises:
        UsageError: options.speculation is neither "auto" nor the name of an arm, the context is longer than the
            target's, or the memory holds less than one request.
    """
    device = target.model.device
    if options.compile:
        try:
            for head in heads or [None]:
                compile_pair(target, None if head is None else head.head, stored_only=True)
        except CompileError as error:
            if device.type == "cuda":  # on a CPU, `compile_in_background` logs the error
                print(f"eyas: warning: Forwards run uncompiled: {error.problem}.", file=sys.stderr)
    context = _context(options, target.info.max_positions)
    depths = [head.head.config.max_depth for head in heads]  # an arm must fit all heads
    arms = default_arms(min((depth for depth in depths if depth is not None), default=None))
    if heads and options.speculation != "auto":
        named = tuple(arm for arm in arms if arm.name == options.speculation)
        if not named:
            names = ", ".join(("auto", *(arm.name for arm in arms)))
            raise UsageError(f"--speculation {options.speculation} is not a known arm", f"Choose one of {names}")
        arms = named
    heads = [replace(head, shape=heads[0].shape, arms=arms) for head in heads]
    memory_tokens = options.memory_tokens or _memory_tokens(target, heads, options, context)
    copies, source = None, options.copies or ("request" if heads else "off")
    if source != "off" and options.speculation == "auto" and len(heads) < 2:  # a canary compares heads alone
        copies = CopyFinder(POOL_TOKENS if source == "key" else 0)
    dtype = _kv_dtype(options, device)
    engine = Engine(target, heads, options.slots, context, memory_tokens=memory_tokens, copies=copies, kv_dtype=dtype)
    capture_graphs(engine, arms if heads else (OFF,))
    if heads or copies is not None:
        # Rounds are measured again once the forwards are compiled: until then a rough measurement is enough.
        will_compile = options.compile and device.type == "cpu" and not _runs_compiled(engine)
        _set_policies(engine, arms if heads else (OFF,), 0.0 if will_compile else TIME_LIMIT_S)
    # A CPU that works for the host cannot work for the device: there the overlap hides nothing.
    loop = overlap_loop if device.type == "cuda" else plain_loop
    return AsyncEngine(engine, options.max_waiting, loop, thread)


def start_canary(engine: AsyncEngine, options: CanaryOptions, log: Callable[[str], None]) -> None:
    """Prepares the canary experiment, in which the second head drafts for a share of the requests.

    Requirement: call it before `AsyncEngine.start`.

    Args:
        engine: an engine with two heads.
        options: the share of the canary, and the seed.
        log: receives one line after each interim analysis.
    """
    arms = tuple(arm for arm in engine.engine.policies[0].arms if arm.shape is not None)
    engine.canary = CanaryExperiment(options, [arm.name for arm in arms], canary_costs(engine.engine, arms), log)


def compile_in_background(engine: AsyncEngine, log: Callable[[str], None]) -> None:
    """Compiles the forwards that the cache does not hold, on a new thread, and returns at once.

    Once they are compiled, the engine uses them and measures round costs again as soon as it has no request. If
    compiling fails, the reason is logged and forwards keep running uncompiled.
    """
    target, heads = engine.engine.target, _compilable_heads(engine.engine)
    if _runs_compiled(engine.engine):
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


def _compilable_heads(engine: Engine) -> list[Head]:
    found = [drafter.head for drafter in engine.runner.drafters]
    return [head.compilable for head in found if head is not None and head.compilable is not None]


def _runs_compiled(engine: Engine) -> bool:
    heads_compiled = all(head.compiled_forward is not None for head in _compilable_heads(engine))
    return engine.target.compiled_forward is not None and heads_compiled


def _set_policies(engine: Engine, arms: tuple[Arm, ...], time_limit_s: float = TIME_LIMIT_S) -> None:
    """Sets one policy for each head, because heads differ in acceptance and cost: a budget, or a fixed arm."""

    def policy(drafter: int) -> Policy:
        if len(arms) == 1 and engine.copies is None:
            return FixedArm(arms[0])
        return build_budget(engine, arms, cache_directory(), drafter=drafter, time_limit_s=time_limit_s)

    engine.policies[:] = [policy(drafter) for drafter in range(len(engine.policies))]


def _context(options: EngineOptions, max_positions: int) -> int:
    """Returns the maximum tokens of a request. Raises UsageError if target or memory cannot hold such a request."""
    context = min(MAX_CONTEXT, max_positions) if options.context is None else options.context
    if context > max_positions:
        problem = f"--context {context} exceeds the target's limit of {max_positions} tokens"
        raise UsageError(problem, f"Use at most {max_positions}")
    if options.memory_tokens is not None and options.memory_tokens < context:
        problem = f"--memory-tokens {options.memory_tokens} is less than one request of {context} tokens (--context)"
        raise UsageError(problem, f"Use at least {context}, or a smaller --context")
    return context


def _kv_dtype(options: EngineOptions, device: torch.device) -> torch.dtype | None:
    """Returns the dtype of keys and values, None for that of the weights. Raises UsageError if the device lacks it."""
    if options.kv_dtype != "fp8":
        return None
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise UsageError("--kv-dtype fp8 needs a GPU of compute capability 8.9 or newer", "Leave out --kv-dtype")
    return torch.float8_e4m3fn


def _memory_tokens(target: Target, heads: Sequence[HeadSpec], options: EngineOptions, context: int) -> int:
    """Returns the number of tokens of KV memory.

    On a CPU: the context of all slots, as far as the share of the memory allows. On CUDA: what the share leaves beside
    the weights and the largest forward; a longer prefix cache uses what the slots do not need.
    """
    info, weight = target.info, next(target.model.parameters())
    kv_bytes = (_kv_dtype(options, weight.device) or weight.dtype).itemsize
    token_bytes = 2 * info.num_layers * info.num_kv_heads * info.head_dim * kv_bytes
    token_bytes += sum(head.token_bytes for head in heads)
    if heads:
        token_bytes += len(target.aux_layer_ids) * info.hidden_size * weight.element_size()
    all_slots = options.slots * (context + SLOT_BLOCK)
    if weight.device.type != "cuda":
        return min(all_slots, int((options.memory_share or CPU_SHARE) * memory_bytes()) // token_bytes)
    rows = max(PREFILL_CHUNK, options.slots * max((shape.nodes for head in heads for shape in head.shapes), default=1))
    forward_bytes = _measure_forward_bytes(target, rows)
    free_bytes, total_bytes = torch.cuda.mem_get_info(weight.device)
    # Prefills and recorded rounds have memory pools of their own.
    room = free_bytes - (1 - (options.memory_share or CUDA_SHARE)) * total_bytes - 2 * forward_bytes
    num_tokens = int(room) // token_bytes
    if num_tokens < context:
        problem = f"The GPU has room for {max(num_tokens, 0)} tokens of KV memory, less than one request of {context}"
        raise UsageError(problem, "Lower --context or --slots, raise --memory-share, or use a larger GPU")
    return num_tokens


def _measure_forward_bytes(target: Target, rows: int) -> int:
    """Returns the bytes that a forward over `rows` rows with sampling allocates on the GPU beside KV memory."""
    device = target.model.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    positions_1T = torch.arange(rows, device=device)[None]
    settings = SamplingBatch.from_params([SamplingParams(1.0, top_p=0.9)], device)
    with torch.inference_mode():
        out = target.forward(positions_1T * 0, positions_1T, PackedAttention(attend_to_text), want_aux=True)
        zeros_T = positions_1T[0] * 0
        uniforms_T = position_uniforms(zeros_T, positions_1T[0])
        choose_tokens(target.logits(out.hidden_BTD[0]), settings, zeros_T, uniforms_T)
    needed = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return needed
