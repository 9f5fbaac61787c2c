"""Dense attention against softmax written out, and against pictures of who sees whom."""

import math

import pytest
import torch
from tests.model.cached_rows import keep_rows

from eyas.model import attention
from eyas.model.attention import (
    AttentionParams,
    DenseAttention,
    causal_attention,
    causal_mask,
    dense_attention,
    masked_attention,
)


def picture(visible_TS: torch.Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in visible_TS.tolist()]


def seen(text: str) -> torch.Tensor:
    return torch.tensor([[letter == "x" for letter in row] for row in text.split()])[None]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax_by_hand(q, k, v, visible_BTS, scale, softcap=None, sinks_N=None):
    """One head, one row at a time; query head n uses key-value head n // (N / G)."""
    out = torch.zeros_like(q)
    B, N, T, _ = q.shape
    share = N // k.shape[1]
    for b in range(B):
        for n in range(N):
            for t in range(T):
                rows = [s for s in range(k.shape[2]) if visible_BTS[b, t, s]]
                scores = [float(q[b, n, t] @ k[b, n // share, s]) * scale for s in rows]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                weights = [math.exp(score) for score in scores]
                total = sum(weights) + (0 if sinks_N is None else math.exp(float(sinks_N[n])))
                for weight, s in zip(weights, rows, strict=True):
                    out[b, n, t] += weight / total * v[b, n // share, s]
    return out


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
ODD_SCORES = {
    "softcap": AttentionParams(0.3, softcap=0.7),
    "sinks": AttentionParams(0.3, sinks_N=SINKS),
    "both": AttentionParams(0.3, softcap=0.7, sinks_N=SINKS),
}
WINDOW_3 = """
x......
xx.....
xxx....
.xxx...
..xxx..
...xxx.
....xxx
"""
CHUNK_3 = """
x......
xx.....
xxx....
...x...
...xx..
...xxx.
......x
"""


def shown(params: AttentionParams, num_new: int, num_kept: int) -> list[str]:
    """Who sees whom, read from the result: with a one for its own column as value, a row's weights are its output."""
    q, k = random(1, 1, num_new, num_kept), random(1, 1, num_kept, num_kept, seed=1)
    out = causal_attention(q, k, torch.eye(num_kept, dtype=torch.float64)[None, None], params)
    return picture(out[0, 0] > 0)


def test_dense_attention_is_softmax_over_the_visible_rows():
    q, k, v = random(2, 4, 3, 6), random(2, 2, 5, 6, seed=1), random(2, 2, 5, 6, seed=2)
    visible = torch.cat((seen("xx... xxx.. .xx.x"), seen("x.... x.x.. xxxxx")))
    expected = softmax_by_hand(q, k, v, visible, 0.3)
    torch.testing.assert_close(dense_attention(q, k, v, visible, 0.3), expected)


def test_causal_picture():
    assert picture(causal_mask(3, 5)[0]) == ["xxx..", "xxxx.", "xxxxx"]


def test_growing_in_pieces_equals_one_pass():
    q, k, v = random(1, 4, 6, 8), random(1, 2, 6, 8, seed=1), random(1, 2, 6, 8, seed=2)
    whole = DenseAttention()(0, q, k, v, AttentionParams(0.5))
    grown = DenseAttention()
    parts = [
        grown(0, q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], AttentionParams(0.5)) for i, j in ((0, 3), (3, 4), (4, 6))
    ]
    torch.testing.assert_close(torch.cat(parts, 2), whole)
    assert grown.num_cached == 6


def test_keep_leaves_the_path_of_a_tree():
    """Rows 3, 4 are two children of row 2; after keeping row 4 only, the next row sees rows 0 1 2 4."""
    q, k, v = random(1, 2, 6, 4), random(1, 2, 6, 4, seed=1), random(1, 2, 6, 4, seed=2)

    def rows(x: torch.Tensor, ids: list[int]) -> torch.Tensor:
        return x[:, :, ids]

    attend = DenseAttention()
    attend(0, rows(q, [0, 1, 2]), rows(k, [0, 1, 2]), rows(v, [0, 1, 2]), AttentionParams(0.5))
    attend.set_visible(seen("xxxx. xxx.x"))(0, rows(q, [3, 4]), rows(k, [3, 4]), rows(v, [3, 4]), AttentionParams(0.5))
    keep_rows(attend, torch.tensor([[0, 1, 2, 4]]))
    out = attend.set_visible(None)(0, rows(q, [5]), rows(k, [5]), rows(v, [5]), AttentionParams(0.5))
    path = [0, 1, 2, 4, 5]
    torch.testing.assert_close(out, softmax_by_hand(rows(q, [5]), rows(k, path), rows(v, path), seen("xxxxx"), 0.5))


def test_see_is_per_request():
    q, k, v = random(2, 2, 1, 4), random(2, 2, 3, 4, seed=1), random(2, 2, 3, 4, seed=2)
    attend = DenseAttention()
    attend(0, random(2, 2, 2, 4), k[:, :, :2], v[:, :, :2], AttentionParams(0.5))
    visible = torch.cat((seen("x.x"), seen(".xx")))
    out = attend.set_visible(visible)(0, q, k[:, :, 2:], v[:, :, 2:], AttentionParams(0.5))
    torch.testing.assert_close(out, softmax_by_hand(q, k, v, visible, 0.5))


@pytest.mark.parametrize("name", ODD_SCORES)
def test_soft_caps_and_sinks(name: str):
    q, k, v = random(2, 4, 3, 6), random(2, 2, 5, 6, seed=1), random(2, 2, 5, 6, seed=2)
    visible = torch.cat((seen("xx... xxx.. .xx.x"), seen("x.... x.x.. xxxxx")))
    params = ODD_SCORES[name]
    expected = softmax_by_hand(q, k, v, visible, 0.3, params.softcap, params.sinks_N)
    torch.testing.assert_close(masked_attention(q, k, v, visible, params), expected)
    near = masked_attention(q.float(), k.float(), v.float(), visible, params)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, expected.float())


@pytest.mark.parametrize("block_rows", [1, 2, 3, 4, 512])
@pytest.mark.parametrize(
    ("params", "drawn"), [(AttentionParams(0.3, window=3), WINDOW_3), (AttentionParams(0.3, chunk=3), CHUNK_3)]
)
def test_windows_and_chunks_are_as_drawn(
    params: AttentionParams, drawn: str, block_rows: int, monkeypatch: pytest.MonkeyPatch
):
    """For all rows at once and for the last ones, whatever the blocks in which they are worked through."""
    monkeypatch.setattr(attention, "BLOCK_ROWS", block_rows)
    rows = drawn.split()
    assert shown(params, 7, 7) == rows
    assert shown(params, 3, 7) == rows[-3:]
    assert shown(params, 1, 7) == rows[-1:]
    assert shown(params, 3, 3) == [row[:3] for row in rows[:3]]


@pytest.mark.parametrize("num_new", [1, 5, 11])
@pytest.mark.parametrize(
    "params",
    [
        AttentionParams(0.3),
        AttentionParams(0.3, window=4),
        AttentionParams(0.3, chunk=4),
        *ODD_SCORES.values(),
        AttentionParams(0.3, 4, None, 0.7, SINKS),
    ],
)
def test_text_in_blocks_is_softmax_by_hand(params: AttentionParams, num_new: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    q, k, v = random(2, 4, num_new, 6), random(2, 2, 11, 6, seed=1), random(2, 2, 11, 6, seed=2)
    visible = torch.zeros(2, num_new, 11, dtype=torch.bool)
    for row in range(num_new):
        place = 11 - num_new + row
        begin = {(4, None): place - 3, (None, 4): place // 4 * 4}.get((params.window, params.chunk), 0)
        visible[:, row, max(begin, 0) : place + 1] = True
    expected = softmax_by_hand(q, k, v, visible, 0.3, params.softcap, params.sinks_N)
    torch.testing.assert_close(causal_attention(q, k, v, params), expected)


@pytest.mark.parametrize("params", [AttentionParams(0.5, window=3), AttentionParams(0.5, chunk=4)])
def test_windowed_text_grown_in_pieces_equals_one_pass(params: AttentionParams):
    q, k, v = random(1, 4, 9, 8), random(1, 2, 9, 8, seed=1), random(1, 2, 9, 8, seed=2)
    grown = DenseAttention()
    pieces = ((0, 5), (5, 6), (6, 9))
    parts = [grown(0, q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], params) for i, j in pieces]
    torch.testing.assert_close(torch.cat(parts, 2), DenseAttention()(0, q, k, v, params))


@pytest.mark.parametrize(
    ("params", "drawn"),
    [
        (AttentionParams(0.5, window=3), ".xxx... .xx.x.. ..x.xx. ....xxx"),
        (AttentionParams(0.5, chunk=4), "xxxx... xxx.x.. .....x. .....xx"),
    ],
)
def test_windows_and_chunks_cut_the_mask_of_a_tree_by_position(params: AttentionParams, drawn: str):
    """Columns are not positions: two siblings stand at position 3, the second has a child, and that one too."""
    tree, positions = "xxxx... xxx.x.. xxx.xx. xxx.xxx", [[0, 1, 2, 3, 3, 4, 5]]
    q, k, v = random(1, 2, 7, 4), random(1, 2, 7, 4, seed=1), random(1, 2, 7, 4, seed=2)
    attend = DenseAttention()
    attend(0, q[:, :, :3], k[:, :, :3], v[:, :, :3], params)
    attend.set_visible(seen(tree), torch.tensor(positions))
    out = attend(0, q[:, :, 3:], k[:, :, 3:], v[:, :, 3:], params)
    torch.testing.assert_close(out, softmax_by_hand(q[:, :, 3:], k, v, seen(drawn), 0.5))


def test_a_mask_without_positions_is_not_enough_for_a_window():
    attend = DenseAttention().set_visible(seen("x.. xx. x.x"))
    q = random(1, 2, 3, 4)
    attend(0, q, q, q, AttentionParams(0.5, softcap=2.0))
    with pytest.raises(AssertionError, match="needs the positions"):
        DenseAttention().set_visible(seen("x.. xx. x.x"))(0, q, q, q, AttentionParams(0.5, window=2))


def first(params: AttentionParams) -> list[int]:
    found = params.first_visible(torch.tensor([0, 3, 4, 7, 8]))
    assert found is not None
    return found.tolist()


def test_what_a_rule_reaches():
    assert AttentionParams(1.0).first_visible(torch.tensor([0, 3])) is None
    assert first(AttentionParams(1.0, window=4)) == [0, 0, 1, 4, 5]
    assert first(AttentionParams(1.0, chunk=4)) == [0, 0, 4, 4, 8]
    assert [
        AttentionParams(1.0).visible_span,
        AttentionParams(1.0, window=4).visible_span,
        AttentionParams(1.0, chunk=8).visible_span,
    ] == [None, 4, 8]
