"""Times the linear layers of eyas on this CPU beside those of torch (float32: MKL; bfloat16: ATen or oneDNN).

    python benchmarks/linear_cpu.py [--threads N]

Prints one JSON object for each layer, dtype and number of rows: the seconds of torch divided by those of eyas, median
of rotated pairs with its 95 % interval. For bfloat16 a second one compares with oneDNN and weights in its own order, as
torch's compiler uses it. Each layer has so many copies that their weights do not fit into the caches, as
in a model. A pair runs all copies once. The last rows compare weights of eyas on the usual pages of memory with weights
on pages of 2 MiB (kernels/huge_pages.py). No row has a target, because processors differ.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from result_rows import Row, print_rows
from torch import Tensor, nn

from eyas.base.environment import count_cpus
from eyas.kernels.cpu_linear import PackedWeight
from eyas.kernels.huge_pages import ALIGNMENT, HugePages
from eyas.tree.intervals import median_interval

LAYERS = {"qkv 512 to 768": (512, 768), "down 1536 to 512": (1536, 512), "logits 512 to 8192": (512, 8192)}
ROWS = (1, 2, 4, 8, 16, 64, 256)
WEIGHT_BYTES, MAX_COPIES = 80e6, 60
PAIRS, SLOW_S = 9, 1.0
PAGE_ROWS, PAGE_PAIRS = (1, 4, 16), 61


Layers = Sequence[Callable[[Tensor], Tensor]]


def _seconds(layers: Layers, x: Tensor) -> float:
    began_s = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - began_s


def ratio_row(label: str, one: Layers, other: Layers, x: Tensor, pairs: int) -> Row:
    """Returns the row of the seconds of `one` divided by those of `other`."""
    ratios = []
    for pair in range(pairs):
        order = (one, other) if pair % 2 else (other, one)
        times = {id(arm): _seconds(arm, x) for arm in order}
        ratios.append(times[id(one)] / times[id(other)])
    middle, span = median_interval(ratios, 0)
    return Row(label, round(middle, 2), "told", True, (round(span.low, 2), round(span.high, 2)))


def onednn_layers(layers: Sequence[nn.Linear], rows: int) -> Layers:
    """Returns the layers as oneDNN computes them, with weights in the order that it prefers for this number of rows."""

    def build(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.data, rows)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return [build(layer) for layer in layers]


def linear_rows() -> Iterator[Row]:
    """Yields the rows."""
    for name, (num_in, num_out) in LAYERS.items():
        for dtype in (torch.bfloat16, torch.float32):
            copies = min(int(WEIGHT_BYTES / (num_in * num_out * dtype.itemsize)), MAX_COPIES)
            plain = [nn.Linear(num_in, num_out, bias=False, dtype=dtype) for _ in range(copies)]
            packed = [PackedWeight([layer]) for layer in plain]
            for rows in ROWS:
                x = torch.randn(rows, num_in).to(dtype)
                slow_s = _seconds(plain, x)
                _seconds(packed, x)
                label = f"linear: {name}, {str(dtype).removeprefix('torch.')}, {rows} rows: torch over eyas"
                pairs = PAIRS if slow_s < SLOW_S else 3
                yield ratio_row(label, plain, packed, x, pairs)
                if dtype == torch.bfloat16:
                    yield ratio_row(label.replace("torch", "oneDNN"), onednn_layers(plain, rows), packed, x, pairs)


def page_rows() -> Iterator[Row]:
    """Yields the rows about pages."""
    for name, (num_in, num_out) in LAYERS.items():
        layer = nn.Linear(num_in, num_out, bias=False, dtype=torch.bfloat16)
        copies = int(WEIGHT_BYTES / layer.weight.nbytes)
        memory = HugePages(copies * (layer.weight.nbytes + ALIGNMENT))
        usual = [PackedWeight([layer]) for _ in range(copies)]
        huge = [PackedWeight([layer], memory) for _ in range(copies)]
        for rows in PAGE_ROWS:
            label = f"linear: {name}, bfloat16, {rows} rows: pages of 4 KiB over pages of 2 MiB"
            yield ratio_row(label, usual, huge, torch.randn(rows, num_in).bfloat16(), PAGE_PAIRS)


def main() -> int:
    """Prints the rows. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=count_cpus())
    torch.set_num_threads(parser.parse_args().threads)
    with torch.inference_mode():
        return print_rows(chain(linear_rows(), page_rows()))


if __name__ == "__main__":
    sys.exit(main())
