import pytest
import torch
from tests.engine.test_nothing_waits import forbidden
from tests.features.small import random_row

from eyas.train import chain_attention as module
from eyas.train.chain_attention import chain_attention
from eyas.train.ttt import pack_rows

SHARED = ("cpu",)  # texts share blocks, as on a GPU


@pytest.mark.parametrize("sharing", [(), SHARED])
@pytest.mark.parametrize("block_floats", [1, 40, 10_000])  # one chain a block, two or three, all of a text
def test_gradient_is_that_of_finite_differences(
    block_floats: int, sharing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_FLOATS", block_floats)
    monkeypatch.setattr(module, "SHARING", sharing)
    packed = pack_rows([random_row("..xxxx", 2, 9), random_row(".xxx", 2, 9)], 3, torch.float32)
    num_rows, num_chains = len(packed.ids_P), len(packed.chains_Q)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, *own):
        return chain_attention(packed.chain_places, q, (k, v), list(zip(own[::2], own[1::2], strict=True)), 0.7)

    prefix = tensor(4, num_chains, 3), tensor(2, num_rows, 3), tensor(2, num_rows, 3)
    assert torch.autograd.gradcheck(attend, prefix)
    own = [tensor(2, num_chains, 3) for _ in range(4)]
    assert torch.autograd.gradcheck(attend, (*prefix, *own))


@pytest.mark.parametrize("sharing", [(), SHARED])
def test_texts_do_not_see_each_other(sharing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARING", sharing)
    rows = [random_row("..xxxx", 2, 9), random_row(".xxx", 2, 9)]
    packed = pack_rows(rows, 3, torch.float32)
    alone = pack_rows(rows[1:], 3, torch.float32)
    first = packed.texts[1].rows.start
    q, k, v = torch.randn(4, len(packed.chains_Q), 3), torch.randn(2, 10, 3), torch.randn(2, 10, 3)
    chains = packed.texts[1].chains
    together = chain_attention(packed.chain_places, q, (k, v), [], 1.0)[:, chains]
    single = chain_attention(alone.chain_places, q[:, chains], (k[:, first:], v[:, first:]), [], 1.0)
    torch.testing.assert_close(together, single)


def test_short_texts_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host launches the kernels of a block, so few blocks keep a GPU busy. No block exceeds its limit."""
    packed = pack_rows([random_row("." + "x" * (2 + n % 7), 2, 9) for n in range(40)], 3, torch.float32)
    num_blocks = {}
    for sharing in ((), SHARED):
        monkeypatch.setattr(module, "SHARING", sharing)
        monkeypatch.setattr(module, "BLOCK_FLOATS", 4 * 500)
        blocks = list(module._blocks(packed.chain_places, 4))
        num_blocks[sharing] = len(blocks)
        assert all(block.masked_CT.numel() <= 500 for block in blocks)
        assert sum(block.chains.stop - block.chains.start for block in blocks) == len(packed.chains_Q)
    assert num_blocks[()] == 40
    assert num_blocks[SHARED] <= 13


@pytest.mark.parametrize("sharing", [(), SHARED])
def test_the_host_waits_for_no_device(sharing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of every update runs this, forward and backward: a wait in it would leave a GPU idle."""
    monkeypatch.setattr(module, "SHARING", sharing)
    packed = pack_rows([random_row("..xxxx", 2, 9), random_row(".xxx", 2, 9)], 3, torch.float32)
    q = torch.randn(4, len(packed.chains_Q), 3, requires_grad=True)
    k, v = (torch.randn(2, len(packed.ids_P), 3, requires_grad=True) for _ in range(2))
    own = [(torch.randn(2, len(packed.chains_Q), 3), torch.randn(2, len(packed.chains_Q), 3))]
    with forbidden():
        chain_attention(packed.chain_places, q, (k, v), own, 0.7).sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().sum() > 0 for tensor in (q, k, v))
