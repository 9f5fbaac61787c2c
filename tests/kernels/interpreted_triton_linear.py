"""The kernel of `triton_linear` in Triton's interpreter, against torch. Run by test_triton_attention.py."""

import pytest
import torch

from eyas.kernels.triton_linear import linear


@pytest.mark.parametrize("num_in", [2048, 4096])
@pytest.mark.parametrize("rows", [1, 2])
def test_equals_torch(rows: int, num_in: int):
    generator = torch.Generator().manual_seed(rows)
    x, weight_FD = (torch.randn(shape, generator=generator).half() for shape in ((1, rows, num_in), (64, num_in)))
    found = linear(x, weight_FD)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), x.float() @ weight_FD.float().T, atol=0.2, rtol=2e-3)


def test_other_sizes_run_without_the_kernel():
    x, weight_FD = torch.randn(1, 100), torch.randn(7, 100)
    torch.testing.assert_close(linear(x, weight_FD), x @ weight_FD.T)
    assert linear(torch.empty(0, 100), weight_FD).shape == (0, 7)
