"""Measures how many bytes and operations per second a GPU reaches. The other GPU benchmarks divide by these figures.

    python benchmarks/gpu_bandwidth.py [--tiny]

A limit is honest only if it is the largest figure that some kernel reaches. So the bytes are moved in several ways: a
copy, a sum and a kernel that only reads, and a fill. `best_bandwidth` is the largest of those that read.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from result_rows import Row, print_rows

BYTES, TINY_BYTES = 2**32, 2**24
GEMM_SIZES, TINY_GEMM_SIZES = (4096, 8192, 16_384), (256,)
REPEATS, LAUNCHES = 10, 3
SPEC_SHARE = 0.8  # of the data sheet's bandwidth, which a kernel that only reads reaches on a healthy device


@dataclass(frozen=True)
class Spread:
    """The rates of repeated runs: the best and the median."""

    best: float
    median: float


def find_device() -> torch.device:
    """Returns the CUDA device if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def time_calls(work: Callable[[], object], device: torch.device, launches: int = LAUNCHES) -> float:
    """Returns the seconds of one call: of several calls in a row, so that the launch of a kernel costs nothing."""
    if device.type == "cpu":
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / launches


def measure_rate(amount: float, work: Callable[[], object], device: torch.device) -> Spread:
    """Returns amount / seconds of a call, after two calls that are not timed."""
    for _ in range(2):
        work()
    rates = [amount / time_calls(work, device) for _ in range(REPEATS)]
    return Spread(max(rates), median(rates))


def measure_reads(device: torch.device, num_bytes: int) -> dict[str, Spread]:
    """Returns the bytes per second of each way that reads memory. A copy counts the bytes read and written."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    found = {"copy": measure_rate(2 * num_bytes, lambda: goal.copy_(source), device)}
    floats = source.view(torch.float32)
    found["sum of float32"] = measure_rate(num_bytes, floats.sum, device)
    matrix_RC = source.view(torch.bfloat16).view(-1, 4096)
    vector_C = torch.ones(4096, dtype=torch.bfloat16, device=device)
    found["matrix times vector, bfloat16"] = measure_rate(num_bytes, lambda: matrix_RC @ vector_C, device)
    if device.type == "cuda":
        from gpu_read_kernel import read_all

        found["Triton kernel that reads"] = measure_rate(num_bytes, lambda: read_all(source), device)
    return found


def best_bandwidth(device: torch.device, num_bytes: int = BYTES) -> float:
    """Returns the most bytes per second that any of `measure_reads` reaches."""
    return max(rate.best for rate in measure_reads(device, num_bytes).values())


def spec_bandwidth(device: torch.device) -> float | None:
    """Returns the bandwidth of the data sheet, from clock and width of the memory; None if torch does not say it."""
    if device.type == "cpu":
        return None
    facts = torch.cuda.get_device_properties(device)
    clock_khz, width_bits = getattr(facts, "memory_clock_rate", 0), getattr(facts, "memory_bus_width", 0)
    return 2 * clock_khz * 1000 * width_bits / 8 or None  # two transfers in each clock


def measure_bandwidth(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Yields the rows of all ways to move bytes, in 10^12 bytes/s, and of the best against the data sheet."""
    num_bytes = TINY_BYTES if tiny else BYTES
    found = measure_reads(device, num_bytes)
    goal = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    rates = found | {"fill": measure_rate(num_bytes, lambda: goal.fill_(1), device)}
    for name, rate in rates.items():
        yield Row(f"TB/s: {name}", round(rate.best / 1e12, 4), "told", True, note=f"median {rate.median / 1e12:.3f}")
    best = max(rate.best for rate in found.values())
    spec = spec_bandwidth(device)
    if spec is None:
        yield Row("best read bandwidth over the data sheet's", None, f"at least {SPEC_SHARE:g}", None)
    else:
        yield Row(
            "best read bandwidth over the data sheet's",
            round(best / spec, 3),
            f"at least {SPEC_SHARE:g}",
            best >= SPEC_SHARE * spec,
            note=f"{best / 1e12:.2f} of {spec / 1e12:.2f} TB/s",
        )


def measure_gemm(device: torch.device, size: int) -> Spread:
    """Returns the operations per second of a square bfloat16 product."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return measure_rate(2 * size**3, lambda: torch.mm(a, b), device)


def best_gemm_rate(device: torch.device, tiny: bool = False) -> float:
    """Returns the operations per second of the fastest product."""
    return max(measure_gemm(device, size).best for size in (TINY_GEMM_SIZES if tiny else GEMM_SIZES))


def measure_gemms(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Yields the rows of square bfloat16 products, in 10^12 operations/s."""
    for size in TINY_GEMM_SIZES if tiny else GEMM_SIZES:
        rate = measure_gemm(device, size)
        note = f"median {rate.median / 1e12:.1f}"
        yield Row(f"TFLOP/s: bfloat16 product of {size}", round(rate.best / 1e12, 3), "told", True, note=note)


def run_script(description: str | None, measure: Callable[[bool], Iterable[Row]]) -> int:
    """Parses the command line of a script that needs a GPU, and prints its rows.

    Args:
        description: the docstring of the script.
        measure: yields the rows. Its argument is True for small shapes.

    Returns:
        The exit code: 1 if a row misses its target or was not measured, 2 without a GPU, otherwise 0.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    if not (tiny or torch.cuda.is_available()):
        print("This machine has no CUDA device. Use --tiny to test the script.", file=sys.stderr)
        return 2
    return print_rows(measure(tiny))


def measure_device(tiny: bool) -> Iterator[Row]:
    """Yields the rows of bandwidth and matrix products of this device."""
    device = find_device()
    yield from measure_bandwidth(device, tiny)
    yield from measure_gemms(device, tiny)


if __name__ == "__main__":
    sys.exit(run_script(__doc__, measure_device))
