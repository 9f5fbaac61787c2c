"""Measures attention on CUDA against SDPA over gathered keys, and against the time of reading keys and values.

    python benchmarks/attention_gpu.py [--tiny]

The shape is that of Llama-3.1-8B (32 heads, 8 key-value heads of size 128, bfloat16) with shuffled slots. A request has
a tree of 16 nodes (verification) or one row (plain decoding). The times are those of one layer: it writes the rows,
computes attention and merges the parts. Prints one JSON object for each row:

    over the byte limit             time / (bytes of keys and values / best bandwidth of gpu_bandwidth.py)
    SDPA with gather over eyas      SDPA gathers keys and values into contiguous memory first, as paged memory requires
    contiguous SDPA over eyas       SDPA over contiguous keys and values, which paged memory does not provide. With one
                                    row it has no mask, so it runs flash decoding
    fp8 memory over eyas            eyas with keys and values in 8 bits (compute capability 8.9 and newer)
    flashinfer over eyas            FlashInfer over the same pages, with one row, if it is installed
    difference                      the largest absolute difference between the outputs of eyas and of SDPA

Each measurement replays a CUDA graph over more layers than the L2 cache holds. Every arm runs once in each round, so
that all arms run at the same clock frequency. Exits 1 if a row misses its target, and 2 without CUDA. --tiny uses a
small shape, also on a CPU, to test the script.

T rows, B requests, N heads, G key-value heads, H head size, C context, E nodes, S = C + E, r = N / G, Z slots.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F
from gpu_bandwidth import TINY_BYTES, best_bandwidth, find_device, run_script
from result_rows import Row
from torch import Tensor

from eyas.kernels.dispatch import attention_for_device
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import AttentionParams
from eyas.tree.intervals import median_interval

REQUESTS, CONTEXTS, NODES = (1, 8, 64), (1024, 8192, 65_536), (16, 1)
TINY_REQUESTS, TINY_CONTEXTS = (1, 2), (64,)
N, G, H = 32, 8, 128
DTYPE = torch.bfloat16
PARAMS = AttentionParams(H**-0.5)
ROUNDS, WARM_UP, TINY_ROUNDS = 30, 5, 3
CACHE_MULTIPLE = 8  # the layers of a graph hold this many times the bytes of the L2 cache
MAX_LAYERS, TINY_LAYERS = 32, 2
MAX_DIFFERENCE = 3e-2  # attention weights and outputs have 8 significant bits
MAX_OVER_LIMIT = 1.2  # of a verification
LEAST_RATIO = 1.0  # of the time of SDPA with gather


@dataclass(frozen=True, eq=False)
class Case:
    """The operands of one forward for all layers; kv is [layers, 2, Z, G, H]."""

    kv: Tensor
    table_BC: Tensor
    rows: AttentionMetadata
    q_TNH: Tensor
    k_TGH: Tensor
    v_TGH: Tensor

    @property
    def nodes(self) -> int:
        """E."""
        return self.rows.block_slots_BE.shape[1]

    @property
    def layer_bytes(self) -> int:
        """The bytes of keys and values that one layer reads."""
        return len(self.rows.req_slots_B) * (self.table_BC.shape[1] + self.nodes) * 2 * G * H * DTYPE.itemsize


Arm = Callable[[], list[Tensor]]


def measure_attention(tiny: bool) -> Iterator[Row]:
    """Yields the rows of all cases: short contexts of few requests first."""
    device = find_device()
    bandwidth = best_bandwidth(device, *([TINY_BYTES] if tiny else []))
    yield Row("best bandwidth, TB/s", round(bandwidth / 1e12, 3), "told", True)
    for context in TINY_CONTEXTS if tiny else CONTEXTS:
        for num_requests in TINY_REQUESTS if tiny else REQUESTS:
            for nodes in NODES:
                try:
                    yield from measure(num_requests, context, nodes, bandwidth, device)
                except torch.OutOfMemoryError as error:
                    name = f"over the byte limit: {describe(num_requests, context, nodes)}"
                    yield Row(name, None, "told", None, note=f"not measured: {error}"[:200])
                if device.type == "cuda":
                    torch.cuda.empty_cache()


def describe(num_requests: int, context: int, nodes: int) -> str:
    """Returns the name of a case."""
    kind = "1 row (decoding)" if nodes == 1 else f"{nodes} nodes"
    return f"{num_requests} x {context} tokens, {kind}"


def choose_layers(num_requests: int, context: int, nodes: int, device: torch.device) -> tuple[int, str]:
    """Returns the number of layers, and why the case does not fit in memory; "" if it fits."""
    if device.type == "cpu":
        return TINY_LAYERS, ""
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    per_layer = num_requests * (context + nodes) * 2 * G * H * DTYPE.itemsize
    num_layers = min(MAX_LAYERS, -(-CACHE_MULTIPLE * cache_bytes // per_layer))
    # paged memory, its copies (contiguous, 8 bits), and one gathered layer: in the graph, before it, and in the making
    needed, free = int((2.5 * num_layers + 4) * per_layer), torch.cuda.mem_get_info(device)[0]
    return num_layers, f"needs {needed} bytes of device memory, {free} are free" if needed > free else ""


def measure(num_requests: int, context: int, nodes: int, bandwidth: float, device: torch.device) -> Iterator[Row]:
    """Yields the rows of one case. They have no figure if the case does not fit in memory."""
    label = describe(num_requests, context, nodes)
    num_layers, problem = choose_layers(num_requests, context, nodes, device)
    if problem:
        yield Row(f"over the byte limit: {label}", None, "told", None, note=f"not measured: {problem}")
        return
    case = make_case(num_requests, context, num_layers, nodes, device)
    names = ("eyas", "contiguous SDPA", "SDPA with gather")
    arms: dict[str, Arm] = dict(zip(names, make_arms(case, num_layers), strict=True))
    ours, gathered = arms["eyas"](), arms["SDPA with gather"]()
    difference = max((a - b).abs().max().item() for a, b in zip(ours, gathered, strict=True))
    del ours, gathered
    yield Row(f"difference to SDPA: {label}", round(difference, 6), f"at most {MAX_DIFFERENCE:g}",
              difference <= MAX_DIFFERENCE)  # fmt: skip
    if device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9):
        arms["fp8 memory"] = make_eyas(replace(case, kv=case.kv.to(torch.float8_e4m3fn)), num_layers)
    if nodes == 1 and device.type == "cuda" and importlib.util.find_spec("flashinfer"):
        try:
            arms["flashinfer"] = make_flashinfer(case, num_layers)
        except Exception as error:  # another project's package: whatever fails there is not eyas's
            yield Row(f"flashinfer over eyas: {label}", None, "told", None, note=f"not measured: {error}"[:200])
    times_s = time_arms(arms, device)
    ours_s = median(times_s["eyas"]) / num_layers
    bound_s = case.layer_bytes / bandwidth
    note = f"{1e6 * ours_s:.1f} us of one layer, limit {1e6 * bound_s:.1f} us"
    figure, is_told = ours_s / bound_s, nodes == 1
    target = "told" if is_told else f"at most {MAX_OVER_LIMIT:g}"
    yield Row(f"over the byte limit: {label}", round(figure, 3), target, is_told or figure <= MAX_OVER_LIMIT, note=note)
    for name, times in times_s.items():
        if name != "eyas":
            ratio, span = median_interval([a / b for a, b in zip(times, times_s["eyas"], strict=True)], 0)
            has_target = name == "SDPA with gather"
            target = f"at least {LEAST_RATIO:g}" if has_target else "told"
            interval = round(span.low, 3), round(span.high, 3)
            yield Row(f"{name} over eyas: {label}", round(ratio, 3), target, ratio >= LEAST_RATIO or not has_target,
                      interval)  # fmt: skip


def time_arms(arms: dict[str, Arm], device: torch.device) -> dict[str, list[float]]:
    """Returns the seconds of each arm in every round. The first arm changes from round to round."""
    runs = {name: make_timer(arm, device) for name, arm in arms.items()}
    names, rounds = list(runs), TINY_ROUNDS if device.type == "cpu" else ROUNDS
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-WARM_UP if device.type == "cuda" else 0, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds = runs[name]()
            if number >= 0:
                found[name].append(seconds)
    return found


def make_case(num_requests: int, context: int, num_layers: int, nodes: int, device: torch.device) -> Case:
    """Makes full contexts in shuffled slots and one random tree for all requests."""
    random = torch.Generator(device).manual_seed(0)
    num_slots = num_requests * (context + nodes)
    slots_BS = torch.randperm(num_slots, generator=random, device=device).int().view(num_requests, -1) + 1
    table_BC, own_BE = slots_BS[:, :context].contiguous(), slots_BS[:, context:].contiguous()
    visible_EE = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        visible_EE[node] |= visible_EE[int(torch.randint(node, (1,)))]
    depths_E = visible_EE.sum(1) - 1
    num_rows = num_requests * nodes
    rows = AttentionMetadata(
        starts_B1=torch.arange(0, num_rows + 1, nodes, dtype=torch.int32, device=device),
        req_slots_B=torch.arange(num_requests, dtype=torch.int32, device=device),
        lengths_B=torch.full((num_requests,), context, dtype=torch.int32, device=device),
        slots_T=own_BE.reshape(-1),
        block_slots_BE=own_BE,
        visible_TE=visible_EE.repeat(num_requests, 1).to(device),
        positions_T=(context + depths_E).repeat(num_requests).int().to(device),
    )
    kv = torch.empty((num_layers, 2, num_slots + 1, G, H), dtype=DTYPE, device=device).normal_(generator=random)
    q_TNH, k_TGH, v_TGH = (
        torch.empty((num_rows, heads, H), dtype=DTYPE, device=device).normal_(generator=random) for heads in (N, G, G)
    )
    return Case(kv, table_BC, rows, q_TNH, k_TGH, v_TGH)


def make_eyas(case: Case, num_layers: int) -> Arm:
    """Returns the attention of eyas over the memory of the case."""
    prepare = attention_for_device(case.kv.device)

    def run() -> list[Tensor]:
        attention = prepare(case.kv, case.table_BC, case.rows)
        return [attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, PARAMS) for layer in range(num_layers)]

    return run


def make_arms(case: Case, num_layers: int) -> Iterator[Arm]:
    """Yields three arms: eyas, SDPA over contiguous keys, and SDPA with the gather. Each returns out_TNH of all layers.

    As in a model, the layers share the prepared attention and the mask, which are made once.
    """
    nodes = case.nodes
    slots_S = torch.cat((case.table_BC, case.rows.block_slots_BE), 1).reshape(-1)
    num_requests, context = case.table_BC.shape
    assert case.rows.visible_TE is not None
    visible_BTE = case.rows.visible_TE.view(num_requests, nodes, nodes)
    seen_BTS = torch.cat((visible_BTE.new_ones(num_requests, nodes, context), visible_BTE), 2)
    # The r heads of a group become rows, so that SDPA uses a fused kernel. The r rows of a node are adjacent.
    mask = torch.zeros(seen_BTS.shape, dtype=DTYPE, device=case.kv.device).masked_fill_(~seen_BTS, -torch.inf)
    mask_B1RS = None if nodes == 1 else mask.repeat_interleave(N // G, 1)[:, None]
    q_BGRH = case.q_TNH.view(num_requests, nodes, G, N // G, H).transpose(1, 2).reshape(num_requests, G, -1, H)

    ours = make_eyas(case, num_layers)

    def gather(layer: int) -> tuple[Tensor, Tensor]:
        k_BGSH, v_BGSH = (
            held.index_select(0, slots_S).view(num_requests, -1, G, H).transpose(1, 2) for held in case.kv[layer]
        )
        return k_BGSH, v_BGSH

    def attend(k_BGSH: Tensor, v_BGSH: Tensor) -> Tensor:
        out_BGRH = F.scaled_dot_product_attention(q_BGRH, k_BGSH, v_BGSH, attn_mask=mask_B1RS, scale=PARAMS.scale)
        return out_BGRH.view(num_requests, G, nodes, N // G, H).transpose(1, 2).reshape(-1, N, H)

    ours()  # writes the rows into paged memory before it is copied
    contiguous = [gather(layer) for layer in range(num_layers)]
    yield ours
    yield lambda: [attend(*held) for held in contiguous]
    yield lambda: [attend(*gather(layer)) for layer in range(num_layers)]


def make_flashinfer(case: Case, num_layers: int) -> Arm:
    """Returns FlashInfer's decoding over the same slots, as pages of one token."""
    import flashinfer  # pyright: ignore[reportMissingImports]

    slots_BS = torch.cat((case.table_BC, case.rows.block_slots_BE), 1)
    count, length = slots_BS.shape
    workspace = torch.empty(2**27, dtype=torch.uint8, device=case.kv.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    starts_B1 = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=case.kv.device)
    ones_B = torch.ones(count, dtype=torch.int32, device=case.kv.device)
    wrapper.plan(
        starts_B1,
        slots_BS.reshape(-1),
        ones_B,
        N,
        G,
        H,
        1,
        q_data_type=DTYPE,
        kv_data_type=DTYPE,
        sm_scale=PARAMS.scale,
    )
    pages = [(held[0][:, None], held[1][:, None]) for held in case.kv]
    return lambda: [wrapper.run(case.q_TNH, held) for held in pages[:num_layers]]


def make_timer(arm: Arm, device: torch.device) -> Callable[[], float]:
    """Returns a function that runs the arm once, on CUDA as a CUDA graph, and returns its seconds."""
    if device.type == "cpu":

        def run() -> float:
            began_s = time.perf_counter()
            arm()
            return time.perf_counter() - began_s

        return run
    graph = capture_graph(arm)
    return lambda: time_replay_s(graph)


def capture_graph(arm: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Captures the arm as a CUDA graph. The arm runs twice first, so that nothing is compiled during the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            arm()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arm()
    return graph


def time_replay_s(graph: torch.cuda.CUDAGraph) -> float:
    """Replays the graph once and returns the seconds measured by CUDA events."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


if __name__ == "__main__":
    sys.exit(run_script(__doc__, measure_attention))
