"""What training unrolls is what serving does: the same mask, and the same logits at every step."""

import pytest
import torch
from tests.features.small import random_row
from tests.train.test_reference import CONFIG, VOCAB, WIDTH
from tests.tree.reference import unrolled_chains_visible
from torch import Tensor

from eyas.model.attention import AttentionParams, DenseAttention
from eyas.model.head import Head, HeadConfig
from eyas.train.ttt import UnrolledAttention, pack_rows, unroll

STEPS = 3


def seen_by_training(picture: str, steps: int) -> Tensor:
    """bool [K, C, K, T]: what step k of each chain really sees, asked of the attention that training uses.

    Queries of zero weigh every visible key alike, and values are one-hot, so the output is the row of the mask.
    """
    row = random_row(picture, 2, 9)
    packed = pack_rows([row], steps, torch.float32)
    length, chains = len(row.ids_T), packed.chains_Q
    keys = steps * length
    one_hot = torch.eye(keys).view(steps, 1, 1, length, keys)
    attend, out = UnrolledAttention(packed), []
    first = attend(
        0, torch.zeros(1, 2, length, keys), torch.randn(1, 1, length, keys), one_hot[0], AttentionParams(1.0)
    )
    out.append(first[0, 0, chains])
    for step in range(1, steps):
        values = one_hot[step][:, :, chains]
        later = attend(
            0, torch.zeros(1, 2, len(chains), keys), torch.randn(1, 1, len(chains), keys), values, AttentionParams(1.0)
        )
        out.append(later[0, 0])
    return torch.stack(out).view(steps, len(chains), steps, length) > 0


def draw(seen: Tensor) -> str:
    """One line a query, blocks of keys by step."""
    lines = []
    for query in seen.flatten(0, 1):
        lines.append(" ".join("".join("x" if flag else "." for flag in block) for block in query))
    return "\n".join(lines)


def test_the_unrolled_mask_drawn() -> None:
    """A text of six tokens, chains at 1, 2 and 3; below each other: steps 0, 1, 2 of the three chains."""
    assert draw(seen_by_training("..xxxx", STEPS)) == "\n".join(
        [
            "xx.... ...... ......",
            "xxx... ...... ......",
            "xxxx.. ...... ......",
            "xx.... .x.... ......",
            "xxx... ..x... ......",
            "xxxx.. ...x.. ......",
            "xx.... .x.... .x....",
            "xxx... ..x... ..x...",
            "xxxx.. ...x.. ...x..",
        ]
    )


@pytest.mark.parametrize("picture", ["..xxxx", "." + "x" * 9, "....xxxxx"])
def test_the_unrolled_mask_is_the_tree_mask_of_parallel_chains(picture: str) -> None:
    chains = pack_rows([random_row(picture, 2, 9)], STEPS, torch.float32).chains_Q
    tree = unrolled_chains_visible(len(picture), STEPS - 1, torch.device("cpu"))
    assert torch.equal(seen_by_training(picture, STEPS), tree[:, chains])


def serve_chain(head: Head, embedding: Tensor, aux_TL: Tensor, ids: list[int], t: int) -> list[Tensor]:
    """Logits as serving makes them: extend with true features up to t, then one row at a time on its own output.

    The drafted tokens happen to be the text's, so that both sides are asked the same.
    """
    attend = DenseAttention()
    fused = head.fuse_aux(aux_TL[None, : t + 1])
    out = head.step(embedding[ids[1 : t + 2]][None], fused, torch.arange(t + 1)[None], attend)[:, -1:]
    logits = [head.logits(out)[0, 0]]
    for token in ids[t + 2 :]:
        position = torch.tensor([[attend.num_cached]])
        out = head.step(embedding[[token]][None], head.next_hidden(out), position, attend)
        logits.append(head.logits(out)[0, 0])
    return logits


@pytest.mark.parametrize(
    "flags", [{}, {"norm_output": True}, {"fc_norm": True}, {"fc_norm": True, "norm_output": True}]
)
@pytest.mark.parametrize("window", [None, 4])
@torch.no_grad()
def test_training_step_k_is_serving_step_k(flags: dict[str, bool], window: int | None) -> None:
    """With a window, a chain learns what serving would see of a text whose beginning is missing."""
    steps = 7
    config = HeadConfig(**{**vars(CONFIG), **flags})
    head, embedding = Head.init(config, 0), torch.randn(VOCAB, WIDTH)
    for weight in head.parameters():
        weight.copy_(torch.randn_like(weight) * 0.3 + (weight.ndim == 1))
    rows = [random_row(picture, WIDTH, VOCAB) for picture in ("...xxxxxxxxxxxx", ".xx..xxxxx.xxxxx")]
    packed = pack_rows(rows, steps, torch.float32, window=window)
    logits_KQV = head.logits(unroll(head, packed, embedding[packed.next_ids_P], embedding[packed.tokens_KQ]))
    compared = 0
    for row, text in zip(rows, packed.texts, strict=True):
        ids = row.ids_T.tolist()
        for q in range(text.chains.start, text.chains.stop):
            t = int(packed.chains_Q[q]) - text.rows.start
            cut = max(t + 1 - (window or len(ids)), 0)
            for k, served in enumerate(serve_chain(head, embedding, row.aux_TL[cut:], ids[cut:], t - cut)[:steps]):
                if packed.supervised_KQ[k, q]:
                    torch.testing.assert_close(logits_KQV[k, q], served, atol=1e-5, rtol=1e-5)
                    compared += 1
    assert compared == int(packed.supervised_KQ.sum()) > 100
