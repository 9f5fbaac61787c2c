"""Attention over memory by hand: pictures of who sees whom, softmax in Python's own numbers, text in pieces.

T rows, B requests, N heads, G key-value heads, H head size, C columns, E own block, Z slots, R lines, S seen columns.
"""

import math

import pytest
import torch
from tests.kernels.paged_cases import CASES, forward
from torch import Tensor

from eyas.kernels.paged_attention import AttentionMetadata, dense_paged_attention, prepare_dense, visibility_mask
from eyas.model.attention import AttentionParams, DenseAttention, PackedAttention

TREE = ["x...", "xx..", "x.x.", "xx.x"]  # 0 <- 1 <- 3, 0 <- 2
TREE_DEPTHS = [0, 1, 1, 2]


def mask(rows: list[str]) -> Tensor:
    return torch.tensor([[cell == "x" for cell in row] for row in rows])


def picture(visible_tS: Tensor) -> list[str]:
    return ["".join("x" if cell else "." for cell in row) for row in visible_tS.tolist()]


def one_request(length: int, depths: list[int], own: list[str] | None, num_own: int = 0) -> AttentionMetadata:
    """Rows of one request behind `length` columns; slots 17, 18, ... in the table, 40, 41, ... in the own block."""
    num_own = num_own or len(depths)
    own_BE = torch.arange(40, 40 + num_own, dtype=torch.int32)[None]
    return AttentionMetadata(
        starts_B1=torch.tensor([0, len(depths)], dtype=torch.int32),
        req_slots_B=torch.tensor([1], dtype=torch.int32),
        lengths_B=torch.tensor([length], dtype=torch.int32),
        slots_T=own_BE[0, : len(depths)],
        block_slots_BE=own_BE,
        visible_TE=None if own is None else mask(own),
        positions_T=torch.tensor(depths, dtype=torch.int32) + length,
    )


def seen(rows: AttentionMetadata, params: AttentionParams) -> list[str]:
    length, count = int(rows.lengths_B[0]), int(rows.starts_B1[1])
    return [row[:length] + "|" + row[length:] for row in picture(visibility_mask(rows, 0, 0, count, length, params))]


def test_a_tree_sees_the_whole_prefix_and_its_ancestors() -> None:
    assert seen(one_request(3, TREE_DEPTHS, TREE), AttentionParams(1.0)) == [
        "xxx|x...",
        "xxx|xx..",
        "xxx|x.x.",
        "xxx|xx.x",
    ]


def test_text_sees_the_prefix_and_itself_up_to_each_row() -> None:
    """The own block may be wider than the rows of a request: another one of the forward has more."""
    assert seen(one_request(2, [0, 1, 2], None, num_own=5), AttentionParams(1.0)) == [
        "xx|x....",
        "xx|xx...",
        "xx|xxx..",
    ]


def test_a_window_counts_positions_not_columns() -> None:
    """window = 3: the leaf at position 5 sees 3, 4 and 5; its uncle, at position 4 too, is none of its ancestors."""
    assert seen(one_request(3, TREE_DEPTHS, TREE), AttentionParams(1.0, window=3)) == [
        ".xx|x...",  # position 3
        "..x|xx..",  # position 4
        "..x|x.x.",
        "...|xx.x",  # position 5
    ]
    assert seen(one_request(3, [0, 1, 2, 3], None), AttentionParams(1.0, window=2)) == [
        "..x|x...",
        "...|xx..",
        "...|.xx.",
        "...|..xx",
    ]


def test_sink_tokens_are_seen_where_the_window_hides_them() -> None:
    """Their slots stand behind the own block. A row whose window has some of them sees those in the prefix only."""
    table_RC = torch.arange(20, dtype=torch.int32).expand(2, -1) + 17
    tree = one_request(3, TREE_DEPTHS, TREE).with_sink_tokens(table_RC, window=3, count=2)
    assert tree.block_slots_BE.tolist() == [[40, 41, 42, 43, 17, 18]]
    assert seen(tree, AttentionParams(1.0, window=3)) == [
        ".xx|x...x.",
        "..x|xx..xx",
        "..x|x.x.xx",
        "...|xx.xxx",
    ]
    text = one_request(3, [0, 1, 2, 3], None).with_sink_tokens(table_RC, window=4, count=1)
    assert seen(text, AttentionParams(1.0, window=4)) == ["xxx|x....", ".xx|xx..x", "..x|xxx.x", "...|xxxxx"]


def test_a_chunk_begins_anew() -> None:
    """chunk = 4: positions 0-3 and 4-7 do not see each other."""
    assert seen(one_request(3, TREE_DEPTHS, TREE), AttentionParams(1.0, chunk=4)) == [
        "xxx|x...",  # position 3, the last of its chunk
        "...|.x..",  # position 4
        "...|..x.",
        "...|.x.x",
    ]
    assert seen(one_request(5, [0, 1], None), AttentionParams(1.0, chunk=4)) == ["....x|x.", "....x|xx"]


def by_hand(
    query: list[float], keys: list[list[float]], values: list[list[float]], params: AttentionParams, sink: float | None
):
    """Softmax attention of one row, in Python's own numbers."""
    scores = [params.scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    if params.softcap is not None:
        scores = [params.softcap * math.tanh(score / params.softcap) for score in scores]
    weights = [math.exp(score) for score in scores]
    total = sum(weights) + (0 if sink is None else math.exp(sink))
    return [sum(w * v[i] for w, v in zip(weights, values, strict=True)) / total for i in range(len(values[0]))]


SINKS = (0.5, -1.0, 2.0, 0.0)
RULES = {
    "plain": AttentionParams(0.7),
    "window": AttentionParams(0.7, window=3),
    "chunk": AttentionParams(0.7, chunk=4),
    "softcap": AttentionParams(0.7, softcap=1.5),
    "sinks": AttentionParams(0.7, sinks_N=torch.tensor(SINKS)),
    "all": AttentionParams(0.7, window=2, softcap=1.5, sinks_N=torch.tensor(SINKS)),
}


@pytest.mark.parametrize("params", RULES.values(), ids=RULES)
@pytest.mark.parametrize("own", [TREE, None], ids=["tree", "text"])
def test_softmax_by_hand(own: list[str] | None, params: AttentionParams) -> None:
    """Every row of every head: the columns of the picture, their slots from the table, the head's own group."""
    generator = torch.Generator().manual_seed(1)
    depths = TREE_DEPTHS if own else [0, 1, 2, 3]
    rows = one_request(3, depths, own)
    req_to_token_RC = torch.tensor([[1, 2, 3, 4, 5], [17, 30, 18, 6, 7]], dtype=torch.int32)
    keys_ZGH, values_ZGH = torch.randn(2, 50, 2, 3, generator=generator).unbind(0)
    q_TNH = torch.randn(4, 4, 3, generator=generator)
    k_TGH, v_TGH = torch.randn(2, 4, 2, 3, generator=generator).unbind(0)
    out_TNH = dense_paged_attention(q_TNH, k_TGH, v_TGH, keys_ZGH, values_ZGH, req_to_token_RC, rows, params)
    assert torch.equal(keys_ZGH[40:44], k_TGH)
    assert torch.equal(values_ZGH[40:44], v_TGH)
    for row, line in enumerate(seen(rows, params)):
        columns = [place for place, cell in enumerate(line.replace("|", "")) if cell == "x"]
        slots = [[17, 30, 18, 40, 41, 42, 43][column] for column in columns]
        for head in range(4):
            group = head // 2
            keys = [keys_ZGH[slot, group].tolist() for slot in slots]
            values = [values_ZGH[slot, group].tolist() for slot in slots]
            sink = None if params.sinks_N is None else SINKS[head]
            wanted = by_hand(q_TNH[row, head].tolist(), keys, values, params, sink)
            assert out_TNH[row, head].tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_nothing_unseen_is_read_or_written(name: str) -> None:
    """Other slots may hold anything, and keep it; the rows of other requests change nothing."""
    shape, params = CASES[name]
    one = forward(shape)
    before = one.kv.clone()
    rows, layer = one.rows, 1
    attend = PackedAttention(prepare_dense(one.kv, one.req_to_token_RC, rows))
    q, k, v = (part.transpose(0, 1)[None] for part in (one.q_TNH, one.k_TGH, one.v_TGH))
    out_1TNH = attend(layer, q, k, v, params).transpose(1, 2)
    assert torch.equal(one.kv[layer, 0, rows.slots_T.long()], one.k_TGH)
    assert torch.equal(one.kv[layer, 1, rows.slots_T.long()], one.v_TGH)
    before[layer, :, rows.slots_T.long()] = one.kv[layer, :, rows.slots_T.long()]
    assert torch.equal(one.kv, before)
    other = forward(shape)
    other.kv[:, :, ~other.seen_slots()] = 1e3
    keys_ZGH, values_ZGH = other.kv[layer]
    again_TNH = dense_paged_attention(
        other.q_TNH, other.k_TGH, other.v_TGH, keys_ZGH, values_ZGH, other.req_to_token_RC, rows, params
    )
    torch.testing.assert_close(again_TNH, out_1TNH[0])


def test_text_in_two_forwards_is_text_in_one() -> None:
    """A prompt in chunks of 4, 1 and 3 rows, in scattered slots, with a window: as DenseAttention reads it at once."""
    generator = torch.Generator().manual_seed(2)
    params = AttentionParams(0.4, window=5)
    q_TNH = torch.randn(8, 4, 6, generator=generator)
    k_TGH, v_TGH = torch.randn(2, 8, 2, 6, generator=generator).unbind(0)
    q, k, v = (part.transpose(0, 1)[None] for part in (q_TNH, k_TGH, v_TGH))
    wanted = DenseAttention()(0, q, k, v, params)
    slots_T = torch.tensor([9, 4, 7, 1, 3, 8, 2, 6], dtype=torch.int32)
    kv = torch.full((1, 2, 10, 2, 6), 1e3)
    found = []
    for begin, end in ((0, 4), (4, 5), (5, 8)):
        rows = AttentionMetadata(
            starts_B1=torch.tensor([0, end - begin], dtype=torch.int32),
            req_slots_B=torch.tensor([0], dtype=torch.int32),
            lengths_B=torch.tensor([begin], dtype=torch.int32),
            slots_T=slots_T[begin:end],
            block_slots_BE=slots_T[None, begin:end],
            visible_TE=None,
            positions_T=torch.arange(begin, end, dtype=torch.int32),
        )
        attention = prepare_dense(kv, slots_T[None], rows)
        found.append(attention(0, q_TNH[begin:end], k_TGH[begin:end], v_TGH[begin:end], params))
    torch.testing.assert_close(torch.cat(found), wanted[0].transpose(0, 1))
