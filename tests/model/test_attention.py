"""Dense attention against softmax written out, and against pictures of who sees whom."""

import math

import torch

from eyas.model.attention import DenseAttend, Rule, causal_visible, dense_attention


def picture(visible_TS: torch.Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in visible_TS.tolist()]


def seen(text: str) -> torch.Tensor:
    return torch.tensor([[letter == "x" for letter in row] for row in text.split()])[None]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax_by_hand(q, k, v, visible_BTS, scale):
    """One head, one row at a time; query head n uses key-value head n // (N / G)."""
    out = torch.zeros_like(q)
    B, N, T, _ = q.shape
    share = N // k.shape[1]
    for b in range(B):
        for n in range(N):
            for t in range(T):
                rows = [s for s in range(k.shape[2]) if visible_BTS[b, t, s]]
                weights = [math.exp(float(q[b, n, t] @ k[b, n // share, s]) * scale) for s in rows]
                for weight, s in zip(weights, rows, strict=True):
                    out[b, n, t] += weight / sum(weights) * v[b, n // share, s]
    return out


def test_dense_attention_is_softmax_over_the_visible_rows():
    q, k, v = random(2, 4, 3, 6), random(2, 2, 5, 6, seed=1), random(2, 2, 5, 6, seed=2)
    visible = torch.cat((seen("xx... xxx.. .xx.x"), seen("x.... x.x.. xxxxx")))
    expected = softmax_by_hand(q, k, v, visible, 0.3)
    torch.testing.assert_close(dense_attention(q, k, v, visible, 0.3), expected)


def test_causal_picture():
    assert picture(causal_visible(3, 5)[0]) == ["xxx..", "xxxx.", "xxxxx"]


def test_growing_in_pieces_equals_one_pass():
    q, k, v = random(1, 4, 6, 8), random(1, 2, 6, 8, seed=1), random(1, 2, 6, 8, seed=2)
    whole = DenseAttend()(0, q, k, v, Rule(0.5))
    grown = DenseAttend()
    parts = [grown(0, q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], Rule(0.5)) for i, j in ((0, 3), (3, 4), (4, 6))]
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    assert grown.num_kept == 6


def test_keep_leaves_the_path_of_a_tree():
    """Rows 3, 4 are two children of row 2; after keeping row 4 only, the next row sees rows 0 1 2 4."""
    q, k, v = random(1, 2, 6, 4), random(1, 2, 6, 4, seed=1), random(1, 2, 6, 4, seed=2)

    def rows(x: torch.Tensor, ids: list[int]) -> torch.Tensor:
        return x[:, :, ids]

    attend = DenseAttend()
    attend(0, rows(q, [0, 1, 2]), rows(k, [0, 1, 2]), rows(v, [0, 1, 2]), Rule(0.5))
    attend.see(seen("xxxx. xxx.x"))(0, rows(q, [3, 4]), rows(k, [3, 4]), rows(v, [3, 4]), Rule(0.5))
    attend.keep(torch.tensor([[0, 1, 2, 4]]))
    out = attend.see(None)(0, rows(q, [5]), rows(k, [5]), rows(v, [5]), Rule(0.5))
    path = [0, 1, 2, 4, 5]
    torch.testing.assert_close(out, softmax_by_hand(rows(q, [5]), rows(k, path), rows(v, path), seen("xxxxx"), 0.5))


def test_see_is_per_request():
    q, k, v = random(2, 2, 1, 4), random(2, 2, 3, 4, seed=1), random(2, 2, 3, 4, seed=2)
    attend = DenseAttend()
    attend(0, random(2, 2, 2, 4), k[:, :, :2], v[:, :, :2], Rule(0.5))
    visible = torch.cat((seen("x.x"), seen(".xx")))
    out = attend.see(visible)(0, q, k[:, :, 2:], v[:, :, 2:], Rule(0.5))
    torch.testing.assert_close(out, softmax_by_hand(q, k, v, visible, 0.5))
