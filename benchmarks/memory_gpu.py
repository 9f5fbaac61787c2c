"""Compares the memory that an engine takes on a GPU with the sizes that `eyas plan` and the engine's options tell.

    python benchmarks/memory_gpu.py [--tiny]

The target has the shape of Llama-3.1-8B, with a head of random weights. Forecast: the parameters that `eyas plan` reads
from config.json, the parameters of the head, and the keys, values and features of all tokens that KV memory holds.
Measured: the peak of torch's allocator over both loops at 32 streams, with all CUDA graphs. Prints one JSON object for
each row. Exits 1 if a row misses its target, and 2 without CUDA. --tiny uses a small shape, on a CPU without a peak.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from engine_gpu import CONTEXT, LLAMA_8B, PROMPT, TINY, make_draft, make_target
from gpu_bandwidth import find_device, run_script
from overlap_speed import warm_up
from result_rows import Row
from worker_stream import TimedStream

from eyas.bench.workload import Prompt
from eyas.drafters.eagle3 import Eagle3Drafter
from eyas.engine.device_stream import stream_for
from eyas.engine.engine import Engine
from eyas.kernels.aot_compile import compile_pair
from eyas.model.target_info import read_model_shape

STREAMS, TINY_STREAMS = 32, 2
MAX_RATIO = 1.1  # of the peak over the forecast: activations, logits, CUDA graphs, tables


def measure_memory(tiny: bool) -> Iterator[Row]:
    """Yields the rows of the weights, of KV memory and of the peak."""
    device = find_device()
    streams, context, prompt = (TINY_STREAMS, 96, 32) if tiny else (STREAMS, CONTEXT, PROMPT)
    with tempfile.TemporaryDirectory() as place:
        target = make_target(TINY if tiny else LLAMA_8B, Path(place), device)
        planned = read_model_shape(place, None).info.num_parameters * target.model.dtype.itemsize
    weights = {weight.data_ptr(): weight.nbytes for weight in target.model.parameters()}  # shared ones count once
    ratio = sum(weights.values()) / planned
    name = "bytes of the target's weights over the parameters of `eyas plan`"
    yield Row(name, round(ratio, 4), "0.99 to 1.01", 0.99 <= ratio <= 1.01, note=f"{planned / 2**30:.2f} GiB planned")
    draft = make_draft(target)
    if device.type == "cuda":
        compile_pair(target, draft.head)
    engine = Engine(target, [draft], streams, context, stream=TimedStream(stream_for(device)))
    drafter, pool = engine.runner.drafters[0], engine.kv_cache.pool
    assert isinstance(drafter, Eagle3Drafter), "the engine has a head"
    info, head = target.info, draft.head.config
    token_numbers = 2 * info.num_layers * info.num_kv_heads * info.head_dim + 3 * info.hidden_size
    token_numbers += 2 * head.num_kv_heads * head.head_dim
    size = target.model.dtype.itemsize
    forecast_kv = (pool.num_slots + 1) * token_numbers * size
    held = pool.kv.nbytes + drafter.kv.nbytes + (0 if pool.aux_ZL is None else pool.aux_ZL.nbytes)
    name = f"bytes of KV memory over the arithmetic, {streams} streams of {context} tokens"
    yield Row(name, round(held / forecast_kv, 4), "1 to 1.05", 1 <= held / forecast_kv <= 1.05,
              note=f"{forecast_kv / 2**30:.2f} GiB by arithmetic")  # fmt: skip
    forecast = planned + draft.head.num_parameters * size + forecast_kv
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ids = torch.randint(2, info.vocab_size, (streams, prompt), generator=torch.Generator().manual_seed(0)).tolist()
    warm_up(engine, [Prompt(str(number), tuple(text)) for number, text in enumerate(ids)], 16)
    name = f"peak of GPU memory over weights, head and KV memory, {streams} streams"
    if device.type == "cpu":
        yield Row(name, None, f"at most {MAX_RATIO:g}", None, note="not measured: no CUDA device")
        return
    peak = torch.cuda.max_memory_allocated(device)
    reserved = torch.cuda.max_memory_reserved(device) / 2**30
    note = f"{peak / 2**30:.2f} of {forecast / 2**30:.2f} GiB; {reserved:.2f} GiB reserved"
    yield Row(name, round(peak / forecast, 3), f"at most {MAX_RATIO:g}", peak <= MAX_RATIO * forecast, note=note)


if __name__ == "__main__":
    sys.exit(run_script(__doc__, measure_memory))
