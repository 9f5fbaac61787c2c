"""The kernels of `triton_linear` in Triton's interpreter, against torch. Run by test_triton_attention.py."""

import pytest
import torch

from eyas.kernels.triton_linear import linear


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 16, 17])
def test_equals_torch(rows: int, added: bool):
    """One row, few rows and more rows than the kernels take; sizes that fit both kinds of blocks."""
    generator = torch.Generator().manual_seed(rows)
    x, weight_FD, other = (
        torch.randn(shape, generator=generator).half() for shape in ((1, rows, 4096), (64, 4096), (1, rows, 64))
    )
    wanted = x.float() @ weight_FD.float().T + (other.float() if added else 0)
    found = linear(x, weight_FD, other if added else None)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), wanted, atol=0.2, rtol=2e-3)


def test_other_sizes_run_without_the_kernels():
    x, weight_FD = torch.randn(3, 100), torch.randn(7, 100)
    torch.testing.assert_close(linear(x, weight_FD), x @ weight_FD.T)
    assert linear(torch.empty(0, 100), weight_FD).shape == (0, 7)
