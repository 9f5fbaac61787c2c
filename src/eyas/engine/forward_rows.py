"""Builds the rows of a forward of the target: those of draft trees, those of prompt chunks, or both.

B requests, T rows, M tree nodes, E slots of the own block, F chunks that sample a token, R request slots, C columns.

A forward takes at least the time to read the weights, however few rows it has. So on a CPU, the chunks of new prompts
and the trees of running requests share a forward. The results are the same: no row attends to another request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.runner_data import PrefillChunk
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.memory.future_map import FutureMap
from eyas.staging import Staging
from eyas.tree.tree import Tree


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """The rows of prompt chunks.

    Attributes:
        ids_T: The token of each row.
        metadata: The metadata of their attention.
        ends_B: The number of committed columns of each request after the forward.
        rows_F: The last row of each chunk that samples a token.
        ends_F: The position of that token.
        sampling_slots: The request slots of these chunks, on the host.
    """

    ids_T: Tensor
    metadata: AttentionMetadata
    ends_B: Tensor
    rows_F: Tensor
    ends_F: Tensor
    sampling_slots: tuple[int, ...]


def chunk_rows(
    chunks: Sequence[PrefillChunk], staging: Staging, future_map: FutureMap, table_RC: Tensor
) -> ChunkRows | None:
    """Writes the texts of first chunks into the future map, and returns the rows of all chunks; None without rows."""
    texts = [chunk for chunk in chunks if chunk.is_first]
    chunks = [chunk for chunk in chunks if chunk.end > chunk.begin]
    starts = [0, *accumulate(chunk.end - chunk.begin for chunk in chunks)]
    final = [b for b, chunk in enumerate(chunks) if chunk.samples_token]
    req_slots_T, positions_T, starts_B1, req_slots_B, begins_B, ends_B, rows_F, ends_F, *ids = staging.copy(
        [chunk.req_slot for chunk in chunks for _ in range(chunk.begin, chunk.end)],
        [position for chunk in chunks for position in range(chunk.begin, chunk.end)],
        starts,
        [chunk.req_slot for chunk in chunks],
        [chunk.begin for chunk in chunks],
        [chunk.end for chunk in chunks],
        [starts[b + 1] - 1 for b in final],
        [chunks[b].end for b in final],
        *(chunk.ids for chunk in texts),
    )
    for chunk, ids_C in zip(texts, ids, strict=True):
        future_map.start_sequence(chunk.req_slot, ids_C, chunk.begin)
    if not chunks:
        return None
    num_own = max(chunk.end - chunk.begin for chunk in chunks)
    columns_BE = begins_B[:, None] + torch.arange(num_own, device=begins_B.device)
    own_BE = table_RC[req_slots_B[:, None], columns_BE.clamp_(max=table_RC.shape[1] - 1)]
    ints = starts_B1.int(), req_slots_B.int(), begins_B.int()
    metadata = AttentionMetadata(*ints, table_RC[req_slots_T, positions_T], own_BE, None, positions_T.int())
    ids_T, sampling_slots = future_map.tokens_RC[req_slots_T, positions_T], tuple(chunks[b].req_slot for b in final)
    return ChunkRows(ids_T, metadata, ends_B, rows_F, ends_F, sampling_slots)


def tree_rows(
    tree: Tree, rows_T: Tensor | None, req_slots_B: Tensor, lengths_B: Tensor, own_BE: Tensor
) -> tuple[Tensor, AttentionMetadata]:
    """Returns the token of each tree node to verify, and the metadata of their attention.

    Args:
        tree: the trees.
        rows_T: the nodes to verify, as indices into all nodes; None for all of them.
        req_slots_B: the request slots.
        lengths_B: the number of committed columns of each request.
        own_BE: the KV slots of all nodes.
    """
    count, num_nodes = tree.tokens_BM.shape
    positions_BM = lengths_B[:, None] + tree.depths_BM
    visible_BMM = None if tree.is_chain and rows_T is None else tree.ancestors_BMM()
    ids_T, positions_T, slots_T = tree.tokens_BM.reshape(-1), positions_BM.view(-1), own_BE.view(-1)
    if rows_T is None:
        visible_TE = None if visible_BMM is None else visible_BMM.flatten(0, 1)
        return ids_T, AttentionMetadata.uniform(req_slots_B, lengths_B, slots_T, own_BE, positions_T, visible_TE)
    assert visible_BMM is not None, "a selection of nodes is a tree"
    ends_B = torch.searchsorted(rows_T, torch.arange(1, count + 1, device=rows_T.device) * num_nodes)
    starts_B1 = torch.cat((ends_B.new_zeros(1), ends_B)).int()
    positions_T, visible_TE = positions_T[rows_T], visible_BMM.flatten(0, 1)[rows_T]
    req_slots, lengths, slots_T = req_slots_B.int(), lengths_B.int(), slots_T[rows_T]
    rows = (starts_B1, req_slots, lengths, slots_T, own_BE, visible_TE, positions_T.int(), positions_BM.int())
    return ids_T[rows_T], AttentionMetadata(*rows)


def with_chunks(trees: AttentionMetadata, chunks: AttentionMetadata) -> AttentionMetadata:
    """Returns the metadata of one forward over the rows of trees and then the rows of other requests' chunks."""
    width = max(trees.block_slots_BE.shape[1], chunks.block_slots_BE.shape[1])
    own_E = torch.arange(width, dtype=torch.int32, device=chunks.slots_T.device)
    visible_TE = own_positions_BE = None
    if trees.visible_TE is not None:
        counts_B, num_rows = chunks.starts_B1.diff(), len(chunks.slots_T)
        row_T = chunks.positions_T - chunks.lengths_B.repeat_interleave(counts_B, output_size=num_rows)
        visible_TE = torch.cat((_widen(trees.visible_TE, width), own_E <= row_T[:, None]))
    if trees.own_positions_BE is not None:
        own_positions_BE = torch.cat((_widen(trees.own_positions_BE, width), chunks.lengths_B[:, None] + own_E))
    return AttentionMetadata(
        torch.cat((trees.starts_B1, chunks.starts_B1[1:] + len(trees.slots_T))),
        torch.cat((trees.req_slots_B, chunks.req_slots_B)),
        torch.cat((trees.lengths_B, chunks.lengths_B)),
        torch.cat((trees.slots_T, chunks.slots_T)),
        torch.cat([_widen(part.block_slots_BE, width) for part in (trees, chunks)]),
        visible_TE,
        torch.cat((trees.positions_T, chunks.positions_T)),
        own_positions_BE,
    )


def _widen(part_XE: Tensor, width: int) -> Tensor:
    """Adds columns of zeros up to this width."""
    return F.pad(part_XE, (0, width - part_XE.shape[1]))
