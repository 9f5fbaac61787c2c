"""Verify attention on CUDA against SDPA over gathered keys, and against the time that reading keys and values takes.

    python benchmarks/attention_gpu.py

One JSON object a line on stdout: the machine first, then one for each number of requests and context. The shape is that
of Llama-3.1-8B (32 heads on 8 key-value heads of size 128, bfloat16), 16 nodes a request, slots shuffled.

    median_us           one layer: rows written, attention, parts merged
    bound_us            bytes of keys and values that must be read / bandwidth of a copy (bytes read + bytes written)
    ratio_to_bound      median_us / bound_us
    sdpa_us             SDPA over keys that lie in a row already, which no paged memory offers
    gathered_us         SDPA after keys and values were gathered into a row
    speedup             gathered_us / median_us, median over rounds; each is given with its quartiles
    difference          the largest absolute difference between our output and that of SDPA

All are replays of CUDA graphs over so many layers that the second-level cache does not hold them; in each round every
arm runs once, so that they meet the same clocks. Exit 1 if a difference is too large, 2 without CUDA. Minutes.

T rows, B requests, N heads, G key-value heads, H head size, C context, E nodes, S = C + E, r = N / G, Z slots.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import AttentionParams

REQUESTS, CONTEXTS, NODES = (1, 8, 32), (1024, 8192, 32768), 16
N, G, H = 32, 8, 128
DTYPE = torch.bfloat16
RULE = AttentionParams(H**-0.5)
ROUNDS, WARM_UP = 30, 5
MANY_CACHES = 8  # layers of a graph hold so many times what the second-level cache does
MAX_LAYERS = 32
MAX_DIFFERENCE = 3e-2  # weights and outputs have 8 bits


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    quartiles: tuple[float, float]

    @staticmethod
    def of(values: list[float]) -> "Spread":
        """Of at least two values."""
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, (low, high))

    def row(self, name: str) -> dict[str, Any]:
        """Under this name and `<name>_quartiles`."""
        return {name: round(self.median, 3), f"{name}_quartiles": [round(value, 3) for value in self.quartiles]}


@dataclass(frozen=True, eq=False)
class Case:
    """Operands of the same forward for all layers; kv is [layers, 2, Z, G, H]."""

    kv: Tensor
    table_BC: Tensor
    rows: AttentionMetadata
    q_TNH: Tensor
    k_TGH: Tensor
    v_TGH: Tensor

    @property
    def layer_bytes(self) -> int:
        """Keys and values that one layer has to read."""
        return len(self.rows.req_slots_B) * (self.table_BC.shape[1] + NODES) * 2 * G * H * DTYPE.itemsize


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to measure here", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    facts = torch.cuda.get_device_properties(device)
    bandwidth = copy_bandwidth(device)
    machine = {"device": facts.name, "processors": facts.multi_processor_count, "cache_bytes": facts.L2_cache_size}
    versions = {"torch": torch.__version__, "triton": triton_version()}
    say({"machine": machine | versions, "copy_bytes_per_s": round(bandwidth)})
    wrong = 0
    for num_requests in REQUESTS:
        for context in CONTEXTS:
            row = measure(num_requests, context, bandwidth, device)
            wrong += row.get("difference", 0) > MAX_DIFFERENCE
            say(row)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def say(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def triton_version() -> str:
    import triton  # pyright: ignore[reportMissingImports]

    return triton.__version__


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second, median of copies that no cache holds."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device).fill_(1)
    goal = torch.empty_like(source)
    copy = captured(lambda: goal.copy_(source))
    times_s = [time_s(copy) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    return 2 * source.numel() / Spread.of(times_s).median


def measure(num_requests: int, context: int, bandwidth: float, device: torch.device) -> dict[str, Any]:
    """One row of the table; `skipped` says why there is none."""
    name = {"requests": num_requests, "nodes": NODES, "context": context}
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    per_layer = num_requests * (context + NODES) * 2 * G * H * DTYPE.itemsize
    num_layers = min(MAX_LAYERS, -(-MANY_CACHES * cache_bytes // per_layer))
    # memory, the same in a row, and one layer gathered
    needed, free = (2 * num_layers + 2) * per_layer, torch.cuda.mem_get_info(device)[0]
    if needed > free:
        return name | {"skipped": f"needs {needed} bytes of device memory, {free} are free"}
    case = forward(num_requests, context, num_layers, device)
    ours, sdpa, gathered = arms(case, num_layers)
    difference = max((a - b).abs().max().item() for a, b in zip(ours(), gathered(), strict=True))
    graphs = [captured(arm) for arm in (ours, sdpa, gathered)]
    rounds_us = [[1e6 * time_s(graph) / num_layers for graph in graphs] for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    ours_us, sdpa_us, gathered_us = (Spread.of(list(arm)) for arm in zip(*rounds_us, strict=True))
    bound_us = 1e6 * case.layer_bytes / bandwidth
    row = name | {"layers": num_layers} | ours_us.row("median_us")
    row |= {"bound_us": round(bound_us, 3), "ratio_to_bound": round(ours_us.median / bound_us, 3)}
    row |= sdpa_us.row("sdpa_us") | gathered_us.row("gathered_us")
    row |= Spread.of([round_us[2] / round_us[0] for round_us in rounds_us]).row("speedup")
    return row | {"difference": difference}


def forward(num_requests: int, context: int, num_layers: int, device: torch.device) -> Case:
    """Full contexts in shuffled slots, and a random tree a request."""
    random = torch.Generator(device).manual_seed(0)
    num_slots = num_requests * (context + NODES)
    slots_BS = torch.randperm(num_slots, generator=random, device=device).int().view(num_requests, -1) + 1
    table_BC, own_BE = slots_BS[:, :context].contiguous(), slots_BS[:, context:].contiguous()
    visible_EE = torch.eye(NODES, dtype=torch.bool)
    for node in range(1, NODES):
        visible_EE[node] |= visible_EE[int(torch.randint(node, (1,)))]
    depths_E = visible_EE.sum(1) - 1
    num_rows = num_requests * NODES
    rows = AttentionMetadata(
        starts_B1=torch.arange(0, num_rows + 1, NODES, dtype=torch.int32, device=device),
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


Arm = Callable[[], list[Tensor]]


def arms(case: Case, num_layers: int) -> Iterator[Arm]:
    """Ours, SDPA over keys in a row, SDPA that gathers them first; each gives out_TNH of all layers.

    As in a model, what all layers share is made once: the object of the forward, and the mask.
    """
    from eyas.kernels.triton_attention import prepare_on

    prepare = prepare_on(case.kv.device)
    slots_S = torch.cat((case.table_BC, case.rows.block_slots_BE), 1).reshape(-1)
    num_requests, context = case.table_BC.shape
    assert case.rows.visible_TE is not None
    visible_BTE = case.rows.visible_TE.view(num_requests, NODES, NODES)
    seen_BTS = torch.cat((visible_BTE.new_ones(num_requests, NODES, context), visible_BTE), 2)
    # The r heads of a group become rows, so that a fused kernel of SDPA takes them; rows r of one node stay together.
    mask = torch.zeros(seen_BTS.shape, dtype=DTYPE, device=case.kv.device).masked_fill_(~seen_BTS, -torch.inf)
    mask_B1RS = mask.repeat_interleave(N // G, 1)[:, None]
    q_BGRH = case.q_TNH.view(num_requests, NODES, G, N // G, H).transpose(1, 2).reshape(num_requests, G, -1, H)

    def ours() -> list[Tensor]:
        attention = prepare(case.kv, case.table_BC, case.rows)
        return [attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, RULE) for layer in range(num_layers)]

    def gather(layer: int) -> tuple[Tensor, Tensor]:
        k_BGSH, v_BGSH = (
            held.index_select(0, slots_S).view(num_requests, -1, G, H).transpose(1, 2) for held in case.kv[layer]
        )
        return k_BGSH, v_BGSH

    def attend(k_BGSH: Tensor, v_BGSH: Tensor) -> Tensor:
        out_BGRH = F.scaled_dot_product_attention(q_BGRH, k_BGSH, v_BGSH, attn_mask=mask_B1RS, scale=RULE.scale)
        return out_BGRH.view(num_requests, G, NODES, N // G, H).transpose(1, 2).reshape(-1, N, H)

    ours()  # memory holds the rows before it is laid in a row
    in_a_row = [gather(layer) for layer in range(num_layers)]
    yield ours
    yield lambda: [attend(*held) for held in in_a_row]
    yield lambda: [attend(*gather(layer)) for layer in range(num_layers)]


def captured(arm: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The arm as a CUDA graph; run before, so that nothing is compiled while it is captured."""
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


def time_s(graph: torch.cuda.CUDAGraph) -> float:
    """One replay, on the device's own clock."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


if __name__ == "__main__":
    sys.exit(main())
