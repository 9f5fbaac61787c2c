"""Measures attention over paged memory on this CPU: the C operator of eyas against gather and SDPA.

    python benchmarks/attention_cpu.py [--threads 1]

T rows, B requests, N heads, G key-value heads, H head size, S columns and own block, Z slots.

Prints one JSON object for each shape and dtype. The arms run in turn, so that other work on the machine slows all of
them equally:

    ours     the operator of kernels/cpu_attention.c, prepared once for all layers, as in a forward
    small    the same, with keys and values on pages of 4 KiB instead of 2 MiB
    dense    kernels.paged_attention.prepare_dense: gathers keys and values and calls SDPA for each request
    padded   gathers all requests at once, padded to one length, and calls SDPA once; the mask is made beforehand

"warm" calls the same layer repeatedly, so its keys and values stay in the CPU's cache. "cold" cycles through as many
layers as fill COLD_BYTES. Serving is cold: in a forward, the weights of other layers displace the keys and values.

Times are microseconds for one call: median, 10th and 90th percentile. Ratios compare medians and 10th percentiles. If
the two ratios differ widely, the machine was busy; then use the ratio of the 10th percentiles. Takes under a minute.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median, quantiles

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.kernels.cpu_attention import CpuKernel, Unavailable, load_cpu_attention
from eyas.kernels.huge_pages import zeros_on_huge_pages
from eyas.kernels.paged_attention import AttentionMetadata, prepare_dense
from eyas.model.attention import AttentionParams

SHAPES = (  # requests, rows, prefix
    (1, 1, 300),
    (1, 16, 300),
    (1, 16, 3000),
    (8, 1, 300),
    (8, 8, 300),
    (16, 1, 300),
    (1, 512, 0),
)
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 64
PARAMS = AttentionParams(HEAD_DIM**-0.5)
COLD_BYTES = 128 << 20  # four times the last-level cache of the machine of docs/performance.md
ARM_S = 0.35  # time for one arm of one row
MIN_CALLS, MAX_CALLS = 9, 2000

Arm = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """The operands of one forward; kv is [layers, 2, Z, G, H]."""

    kv: Tensor
    req_to_token_RC: Tensor
    rows: AttentionMetadata
    q_TNH: Tensor
    k_TGH: Tensor
    v_TGH: Tensor


def make_case(shape: tuple[int, int, int], dtype: torch.dtype, num_layers: int) -> Case:
    """Makes random operands in shuffled slots. With a prefix the rows have a tree mask."""
    num_requests, num_rows, length = shape
    num_slots, total = num_requests * (length + num_rows) + 1, num_requests * num_rows
    slots_BS = (torch.randperm(num_slots - 1) + 1).int().view(num_requests, -1)
    own_BE = slots_BS[:, length:].contiguous()
    visible_TE = torch.ones(num_rows, num_rows, dtype=torch.bool).tril().repeat(num_requests, 1)
    rows = AttentionMetadata(
        starts_B1=torch.arange(num_requests + 1, dtype=torch.int32) * num_rows,
        req_slots_B=torch.arange(num_requests, dtype=torch.int32),
        lengths_B=torch.full((num_requests,), length, dtype=torch.int32),
        slots_T=own_BE.flatten(),
        block_slots_BE=own_BE,
        visible_TE=visible_TE if length else None,
        positions_T=(torch.arange(num_rows, dtype=torch.int32) + length).repeat(num_requests),
    )
    kv = zeros_on_huge_pages((num_layers, 2, num_slots, NUM_KV_HEADS, HEAD_DIM), dtype, torch.device("cpu"))
    kv += torch.randn(2, num_slots, NUM_KV_HEADS, HEAD_DIM).to(dtype)
    q_TNH = torch.randn(total, NUM_HEADS, HEAD_DIM).to(dtype)
    k_TGH, v_TGH = torch.randn(2, total, NUM_KV_HEADS, HEAD_DIM).to(dtype).unbind(0)
    return Case(kv, slots_BS, rows, q_TNH, k_TGH, v_TGH)


def make_operator_arm(kernel: CpuKernel, case: Case) -> Arm:
    attention = kernel(case.kv, case.req_to_token_RC, case.rows)
    return lambda layer: attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, PARAMS)


def make_dense_arm(case: Case) -> Arm:
    attention = prepare_dense(case.kv, case.req_to_token_RC, case.rows)
    return lambda layer: attention(layer, case.q_TNH, case.k_TGH, case.v_TGH, PARAMS)


def make_padded_arm(case: Case) -> Arm:
    num_requests, num_columns = case.req_to_token_RC.shape
    slots_T, slots_BS = case.rows.slots_T.long(), case.req_to_token_RC.long()
    num_rows = slots_T.shape[0] // num_requests
    visible_TS = torch.ones(num_rows, num_columns, dtype=torch.bool).tril(num_columns - num_rows)
    mask = torch.zeros(num_rows, num_columns, dtype=case.kv.dtype).masked_fill_(~visible_TS, -torch.inf)

    def attend(layer: int) -> Tensor:
        keys_ZGH, values_ZGH = case.kv[layer]
        keys_ZGH[slots_T], values_ZGH[slots_T] = case.k_TGH, case.v_TGH
        k, v = (held[slots_BS].transpose(1, 2) for held in (keys_ZGH, values_ZGH))
        q = case.q_TNH.view(num_requests, num_rows, NUM_HEADS, HEAD_DIM).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=PARAMS.scale, enable_gqa=True)
        return out.transpose(1, 2).reshape(case.q_TNH.shape)

    return attend


def time_arms(arms: dict[str, Arm], num_layers: int) -> dict[str, list[float]]:
    """Returns the microseconds of each call by arm. The arms run in rotated order, each for about ARM_S seconds."""
    times_us: dict[str, list[float]] = {name: [] for name in arms}
    left_s = dict.fromkeys(arms, ARM_S)
    for call in range(-1, MAX_CALLS):  # the first call warms up
        first = call % len(arms)
        for name, arm in [*arms.items()][first:] + [*arms.items()][:first]:
            if left_s[name] < 0 and call >= MIN_CALLS:
                continue
            # With a stride, an arm does not use the layer that another arm has just loaded into the cache.
            layer = (call * 7 + list(arms).index(name) * 3) % num_layers
            began_ns = time.perf_counter_ns()
            arm(layer)
            took_ns = time.perf_counter_ns() - began_ns
            left_s[name] -= took_ns / 1e9
            if call >= 0:
                times_us[name].append(took_ns / 1e3)
    return times_us


def measure(kernel: CpuKernel, shape: tuple[int, int, int], dtype: torch.dtype, cold: bool) -> dict[str, object]:
    layer_bytes = 2 * (shape[0] * (shape[1] + shape[2]) + 1) * NUM_KV_HEADS * HEAD_DIM * dtype.itemsize
    num_layers = COLD_BYTES // layer_bytes if cold else 1
    case = make_case(shape, dtype, num_layers)
    arms = {
        "ours": make_operator_arm(kernel, case),
        "small": make_operator_arm(kernel, replace(case, kv=case.kv.clone())),
        "dense": make_dense_arm(case),
        "padded": make_padded_arm(case),
    }
    outs = {name: arm(0).float() for name, arm in arms.items()}
    torch.testing.assert_close(outs["ours"], outs["dense"], atol=1e-5, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5)
    times_us = time_arms(arms, num_layers)
    row: dict[str, object] = dict(zip(("requests", "rows", "prefix"), shape, strict=True))
    row |= {"dtype": str(dtype).removeprefix("torch."), "memory": "cold" if cold else "warm"}
    figures: dict[str, dict[str, float]] = {}
    for name, times in times_us.items():
        tenths = quantiles(times, n=10)
        figures[name] = {"median": median(times), "p10": tenths[0], "p90": tenths[-1]}
        row[f"{name}_us"] = {key: round(figure, 1) for key, figure in figures[name].items()}
    for name in ("small", "dense", "padded"):
        row[f"{name}_over_ours"] = {
            key: round(figures[name][key] / figures["ours"][key], 2) for key in ("median", "p10")
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and of the operator (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    kernel = load_cpu_attention()
    if isinstance(kernel, Unavailable):
        sys.exit(f"The C operator is not available on this machine: {kernel.reason}")
    print(
        f"The load is {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; measure when it is below 1", file=sys.stderr
    )
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for shape in SHAPES:
                for cold in (False, True):
                    print(json.dumps(measure(kernel, shape, dtype, cold)), flush=True)


if __name__ == "__main__":
    main()
