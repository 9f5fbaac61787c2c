"""Measures verify attention on CUDA against SDPA over gathered keys, and against the time of reading keys and values.

    python benchmarks/attention_gpu.py

Prints one JSON object for the machine, then one for each number of requests and context. The shape is that of
Llama-3.1-8B (32 heads, 8 key-value heads of size 128, bfloat16) with 16 nodes for each request and shuffled slots.

    median_us           time of one layer: writes the rows, computes attention, merges the parts
    bound_us            bytes of keys and values / bandwidth of a copy (bytes read + bytes written)
    ratio_to_bound      median_us / bound_us
    sdpa_us             time of SDPA over contiguous keys and values, which paged memory does not provide
    gathered_us         time of SDPA with the gather of keys and values into contiguous memory
    speedup             gathered_us / median_us, median over rounds; quartiles are printed beside each median
    difference          the largest absolute difference between the outputs of eyas and of SDPA

Each measurement replays a CUDA graph over more layers than the L2 cache holds. Every arm runs once in each round, so
that all arms run at the same clock frequency. Exits 1 if a difference is too large, and 2 without CUDA. Takes minutes.

T rows, B requests, N heads, G key-value heads, H head size, C context, E nodes, S = C + E, r = N / G, Z slots.
"""

import argparse
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
PARAMS = AttentionParams(H**-0.5)
ROUNDS, WARM_UP = 30, 5
CACHE_MULTIPLE = 8  # the layers of a graph hold this many times the bytes of the L2 cache
MAX_LAYERS = 32
MAX_DIFFERENCE = 3e-2  # attention weights and outputs have 8 significant bits


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    quartiles: tuple[float, float]

    @staticmethod
    def from_values(values: list[float]) -> "Spread":
        """Returns the spread of two or more values."""
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, (low, high))

    def to_row(self, name: str) -> dict[str, Any]:
        """Returns the median as `name` and the quartiles as `<name>_quartiles`."""
        return {name: round(self.median, 3), f"{name}_quartiles": [round(value, 3) for value in self.quartiles]}


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
    def layer_bytes(self) -> int:
        """The bytes of keys and values that one layer reads."""
        return len(self.rows.req_slots_B) * (self.table_BC.shape[1] + NODES) * 2 * G * H * DTYPE.itemsize


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not torch.cuda.is_available():
        print("This machine has no CUDA device, so there is nothing to measure.", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    facts = torch.cuda.get_device_properties(device)
    bandwidth = copy_bandwidth(device)
    machine = {"device": facts.name, "processors": facts.multi_processor_count, "cache_bytes": facts.L2_cache_size}
    versions = {"torch": torch.__version__, "triton": triton_version()}
    print_row({"machine": machine | versions, "copy_bytes_per_s": round(bandwidth)})
    wrong = 0
    for num_requests in REQUESTS:
        for context in CONTEXTS:
            row = measure(num_requests, context, bandwidth, device)
            wrong += row.get("difference", 0) > MAX_DIFFERENCE
            print_row(row)
            torch.cuda.empty_cache()
    return 1 if wrong else 0


def print_row(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def triton_version() -> str:
    import triton  # pyright: ignore[reportMissingImports]

    return triton.__version__


def copy_bandwidth(device: torch.device) -> float:
    """Returns the bytes read and written in one second by a copy that is larger than the cache (median)."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device).fill_(1)
    goal = torch.empty_like(source)
    copy = capture_graph(lambda: goal.copy_(source))
    times_s = [time_replay_s(copy) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
    return 2 * source.numel() / Spread.from_values(times_s).median


def measure(num_requests: int, context: int, bandwidth: float, device: torch.device) -> dict[str, Any]:
    """Returns one row of the table. The key `skipped` gives the reason if the case does not fit in memory."""
    name = {"requests": num_requests, "nodes": NODES, "context": context}
    cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    per_layer = num_requests * (context + NODES) * 2 * G * H * DTYPE.itemsize
    num_layers = min(MAX_LAYERS, -(-CACHE_MULTIPLE * cache_bytes // per_layer))
    # paged memory, its contiguous copy, and one gathered layer
    needed, free = (2 * num_layers + 2) * per_layer, torch.cuda.mem_get_info(device)[0]
    if needed > free:
        return name | {"skipped": f"needs {needed} bytes of device memory, {free} are free"}
    case = make_case(num_requests, context, num_layers, device)
    ours, sdpa, gathered = make_arms(case, num_layers)
    difference = max((a - b).abs().max().item() for a, b in zip(ours(), gathered(), strict=True))
    graphs = [capture_graph(arm) for arm in (ours, sdpa, gathered)]
    rounds_us = [[1e6 * time_replay_s(graph) / num_layers for graph in graphs] for _ in range(WARM_UP + ROUNDS)][
        WARM_UP:
    ]
    ours_us, sdpa_us, gathered_us = (Spread.from_values(list(arm)) for arm in zip(*rounds_us, strict=True))
    bound_us = 1e6 * case.layer_bytes / bandwidth
    row = name | {"layers": num_layers} | ours_us.to_row("median_us")
    row |= {"bound_us": round(bound_us, 3), "ratio_to_bound": round(ours_us.median / bound_us, 3)}
    row |= sdpa_us.to_row("sdpa_us") | gathered_us.to_row("gathered_us")
    row |= Spread.from_values([round_us[2] / round_us[0] for round_us in rounds_us]).to_row("speedup")
    return row | {"difference": difference}


def make_case(num_requests: int, context: int, num_layers: int, device: torch.device) -> Case:
    """Makes full contexts in shuffled slots and one random tree for all requests."""
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


def make_arms(case: Case, num_layers: int) -> Iterator[Arm]:
    """Yields three arms: eyas, SDPA over contiguous keys, and SDPA with the gather. Each returns out_TNH of all layers.

    As in a model, the layers share the prepared attention and the mask, which are made once.
    """
    from eyas.kernels.triton_attention import prepare_on

    prepare = prepare_on(case.kv.device)
    slots_S = torch.cat((case.table_BC, case.rows.block_slots_BE), 1).reshape(-1)
    num_requests, context = case.table_BC.shape
    assert case.rows.visible_TE is not None
    visible_BTE = case.rows.visible_TE.view(num_requests, NODES, NODES)
    seen_BTS = torch.cat((visible_BTE.new_ones(num_requests, NODES, context), visible_BTE), 2)
    # The r heads of a group become rows, so that SDPA uses a fused kernel. The r rows of a node are adjacent.
    mask = torch.zeros(seen_BTS.shape, dtype=DTYPE, device=case.kv.device).masked_fill_(~seen_BTS, -torch.inf)
    mask_B1RS = mask.repeat_interleave(N // G, 1)[:, None]
    q_BGRH = case.q_TNH.view(num_requests, NODES, G, N // G, H).transpose(1, 2).reshape(num_requests, G, -1, H)

    def ours() -> list[Tensor]:
        attention = prepare(case.kv, case.table_BC, case.rows)
        return [attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, PARAMS) for layer in range(num_layers)]

    def gather(layer: int) -> tuple[Tensor, Tensor]:
        k_BGSH, v_BGSH = (
            held.index_select(0, slots_S).view(num_requests, -1, G, H).transpose(1, 2) for held in case.kv[layer]
        )
        return k_BGSH, v_BGSH

    def attend(k_BGSH: Tensor, v_BGSH: Tensor) -> Tensor:
        out_BGRH = F.scaled_dot_product_attention(q_BGRH, k_BGSH, v_BGSH, attn_mask=mask_B1RS, scale=PARAMS.scale)
        return out_BGRH.view(num_requests, G, NODES, N // G, H).transpose(1, 2).reshape(-1, N, H)

    ours()  # writes the rows into paged memory before it is copied
    contiguous = [gather(layer) for layer in range(num_layers)]
    yield ours
    yield lambda: [attend(*held) for held in contiguous]
    yield lambda: [attend(*gather(layer)) for layer in range(num_layers)]


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
    sys.exit(main())
