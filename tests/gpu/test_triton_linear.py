"""The compiled kernels of `triton_linear` on a CUDA device, against torch."""

import os

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1: nothing is compiled"),
]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 2])
def test_equals_torch(rows: int):
    from eyas.kernels.triton_linear import linear

    for num_out, num_in in ((6144, 4096), (4096, 14_336), (32_000, 4096), (96, 2048), (98, 2048), (100, 1000)):
        x, weight_FD = random(1, rows, num_in), random(num_out, num_in)
        wanted = x.double() @ weight_FD.double().T
        found = linear(x, weight_FD)
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= 0.01 * wanted.abs().max()


def test_overlapping_kernels_wait_for_each_other():
    """A recorded chain of kernels, each of which reads what the previous one wrote, gives the same bits every time."""
    from eyas.kernels.triton_linear import linear

    weights = [random(2048, 2048) / 45 for _ in range(24)]
    x = random(1, 1, 2048)

    def chain(wait: bool) -> Tensor:
        hidden = x
        for number, weight_FD in enumerate(weights):
            out = linear(hidden, weight_FD)
            hidden = out if number % 2 else torch.nn.functional.rms_norm(out + hidden, (2048,))
            if wait:
                torch.cuda.synchronize()
        return hidden

    wanted = chain(wait=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(wait=False)
    for _ in range(200):
        found.zero_()
        graph.replay()
        torch.testing.assert_close(found, wanted, atol=0, rtol=0)
