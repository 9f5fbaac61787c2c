"""Random forwards over shuffled memory, for every implementation of `paged.PagedAttention`.

T rows, B requests, N heads, G key-value heads, H head size, C columns, E own block, L layers, Z slots, R lines.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.attention import AttentionParams


@dataclass(frozen=True)
class Shape:
    """Who is in a forward. own: how the own block looks.

    tree     the rows are a tree; masked by ancestors
    levels   the own block holds the levels of a draft; the rows are its last columns, or fewer, and see some ancestors
    causal   no mask: own column e is row e
    """

    lengths: tuple[int, ...]
    num_rows: tuple[int, ...]
    own: str = "tree"
    num_own: int = 16
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 16


@dataclass(frozen=True, eq=False)
class Forward:
    """The operands of one forward of one layer; kv holds several layers."""

    kv: Tensor
    req_to_token_RC: Tensor
    rows: AttentionMetadata
    q_TNH: Tensor
    k_TGH: Tensor
    v_TGH: Tensor

    def on(self, device: str, dtype: torch.dtype) -> "Forward":
        """Numbers as `dtype`, everything on `device`."""
        parts: dict[str, Any] = {
            name: part if part is None else part.to(device) for name, part in vars(self.rows).items()
        }
        q_TNH, k_TGH, v_TGH = (part.to(device, dtype) for part in (self.q_TNH, self.k_TGH, self.v_TGH))
        req_to_token_RC = self.req_to_token_RC.to(device)
        return Forward(self.kv.to(device, dtype), req_to_token_RC, AttentionMetadata(**parts), q_TNH, k_TGH, v_TGH)

    def seen_slots(self) -> Tensor:
        """bool [Z]: slots that some row sees under plain rules."""
        rows, seen_Z = self.rows, torch.zeros(self.kv.shape[2], dtype=torch.bool)
        starts, lines = rows.starts_B1.tolist(), rows.req_slots_B.tolist()
        for b, length in enumerate(rows.lengths_B.tolist()):
            count = starts[b + 1] - starts[b]
            if count == 0:
                continue
            seen_Z[self.req_to_token_RC[lines[b], :length].long()] = True
            own_E = rows.block_slots_BE[b].long()
            if rows.visible_TE is None:
                seen_Z[own_E[:count]] = True
            else:
                seen_Z[own_E[rows.visible_TE[starts[b] : starts[b + 1]].any(0)]] = True
        return seen_Z

    def poisoned(self) -> "Forward":
        """NaN in every slot that no row sees."""
        kv = self.kv.clone()
        kv[:, :, ~self.seen_slots()] = torch.nan
        return replace(self, kv=kv)


def forward(shape: Shape, seed: int = 0, columns: int | None = None) -> Forward:
    """A forward of this shape. Lines of the table are in another order than requests; slots are shuffled."""
    random = torch.Generator().manual_seed(seed)
    (num_heads, num_groups), num_requests = shape.heads, len(shape.lengths)
    total, lines = sum(shape.num_rows), num_requests + 2
    columns = columns or max(shape.lengths) + 3
    num_slots = 1 + lines * columns + num_requests * shape.num_own
    slots = torch.randperm(num_slots - 1, generator=random).int() + 1
    req_to_token_RC = slots[: lines * columns].view(lines, columns)
    own_BE = slots[lines * columns :].view(num_requests, shape.num_own).clone()
    req_slots_B = torch.randperm(lines, generator=random)[:num_requests].int()
    starts_B1 = torch.tensor([0, *shape.num_rows]).cumsum(0).int()
    visible_TE = torch.zeros(total, shape.num_own, dtype=torch.bool)
    slots_T = torch.zeros(total, dtype=torch.int32)
    positions_T = torch.zeros(total, dtype=torch.int32)
    own_positions_BE = torch.zeros_like(own_BE)
    for b, count in enumerate(shape.num_rows):
        begin = int(starts_B1[b])
        if count == 0:
            own_BE[b] = 0
            continue
        first_own = shape.num_own - count if shape.own == "levels" else 0
        ancestors_EE, depths = _tree(first_own + count, chain=shape.own == "causal", random=random)
        visible_TE[begin : begin + count, : first_own + count] = ancestors_EE[first_own:]
        slots_T[begin : begin + count] = own_BE[b, first_own : first_own + count]
        positions_T[begin : begin + count] = shape.lengths[b] + depths[first_own:]
        own_positions_BE[b, : first_own + count] = shape.lengths[b] + depths
        own_BE[b, first_own + count :] = 0
    rows = AttentionMetadata(
        starts_B1,
        req_slots_B,
        torch.tensor(shape.lengths, dtype=torch.int32),
        slots_T,
        own_BE,
        None if shape.own == "causal" else visible_TE,
        positions_T,
        own_positions_BE if shape.own == "levels" else None,
    )
    kv = torch.randn(3, 2, num_slots, num_groups, shape.head_dim, generator=random)
    q_TNH = torch.randn(total, num_heads, shape.head_dim, generator=random)
    k_TGH, v_TGH = torch.randn(2, total, num_groups, shape.head_dim, generator=random).unbind(0)
    return Forward(kv, req_to_token_RC, rows, q_TNH, k_TGH, v_TGH)


def _tree(num_nodes: int, chain: bool, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """bool [nodes, nodes]: itself and its ancestors; and the depth of each node."""
    ancestors_EE = torch.eye(num_nodes, dtype=torch.bool)
    for node in range(1, num_nodes):
        parent = node - 1 if chain else int(torch.randint(max(0, node - 8), node, (1,), generator=random))
        ancestors_EE[node] |= ancestors_EE[parent]
    return ancestors_EE, ancestors_EE.sum(1).int() - 1


PLAIN = AttentionParams(0.3)
CAUSAL = Shape((0, 1, 37, 5), (3, 5, 1, 9), "causal", 9)
TREES = Shape((0, 1, 37, 70), (9, 3, 5, 1))
# name -> a forward and a rule. What is not said: trees of up to 16 nodes, 4 heads on 2 key-value heads, head size 16.
CASES: dict[str, tuple[Shape, AttentionParams]] = {
    "trees": (TREES, PLAIN),
    "16 nodes each": (Shape((19, 40), (16, 16)), PLAIN),
    "one request": (Shape((33,), (16,)), PLAIN),
    "requests without rows": (Shape((4, 9, 130, 2, 7), (0, 3, 0, 7, 0)), PLAIN),
    "64 nodes": (Shape((21,), (64,), num_own=64, heads=(2, 1)), PLAIN),
    "draft levels": (Shape((0, 50, 9), (4, 4, 2), "levels", 12), PLAIN),
    "draft levels beyond a word": (Shape((10, 50), (10, 10), "levels", 70), PLAIN),
    "causal": (CAUSAL, PLAIN),
    "causal beyond a block": (Shape((0, 40), (3, 70), "causal", 70, (2, 1)), PLAIN),
    "plain decode": (Shape((5, 64, 65, 1), (1, 1, 1, 1), "causal", 1), PLAIN),
    "own block wider than the rows": (Shape((12, 8), (2, 3), "causal", 8), PLAIN),
    "a head each": (replace(TREES, heads=(2, 2)), PLAIN),
    "groups of 4": (replace(TREES, heads=(4, 1)), PLAIN),
    "groups of 7": (replace(TREES, heads=(7, 1)), PLAIN),
    "causal, groups of 7": (Shape((5,), (20,), "causal", 20, (7, 1)), PLAIN),
    "groups of 16": (replace(TREES, heads=(16, 1)), PLAIN),
    "head size 64": (replace(TREES, heads=(2, 1), head_dim=64), AttentionParams(64**-0.5)),
    "head size 80": (replace(TREES, heads=(2, 1), head_dim=80), AttentionParams(80**-0.5)),
    "head size 128": (replace(TREES, heads=(2, 1), head_dim=128), AttentionParams(128**-0.5)),
    "head size 256": (replace(TREES, heads=(2, 1), head_dim=256), AttentionParams(256**-0.5)),
    "window over trees": (TREES, AttentionParams(0.3, window=20)),
    "window of one": (TREES, AttentionParams(0.3, window=1)),
    "window over draft levels": (Shape((10, 50), (8, 8), "levels", 24), AttentionParams(0.3, window=6)),
    "chunk over draft levels": (Shape((10, 50), (8, 8), "levels", 70), AttentionParams(0.3, chunk=13)),
    "window over a chunk": (
        replace(CAUSAL, lengths=(0, 1, 99, 5), num_rows=(3, 5, 40, 9), num_own=40),
        AttentionParams(0.3, 13),
    ),
    "chunk": (TREES, AttentionParams(0.3, chunk=32)),
    "chunk over a chunk": (Shape((30, 100), (40, 3), "causal", 40), AttentionParams(0.3, chunk=48)),
    "softcap": (TREES, AttentionParams(0.8, softcap=5.0)),
    "sinks": (TREES, AttentionParams(0.3, sinks_N=torch.tensor([0.5, -2.0, 8.0, 1.0]))),
    "everything": (TREES, AttentionParams(0.5, window=12, softcap=9.0, sinks_N=torch.tensor([0.5, -2.0, 3.0, 1.0]))),
}
