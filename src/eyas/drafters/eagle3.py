"""The head at work: read the text that the target has committed, then grow a tree for the next round.

B requests, T rows, D hidden, L = 3D, V draft vocabulary, K top-k, S path slots, E columns of the own block.

With n committed tokens x_0..x_{n - 1} and root x_n the head has rows 0..n - 1: row t read f_t and the embedding of
x_{t + 1}. The last of them predicts x_{n + 1}, the first level of the tree. A node of level i (text position
n + 1 + i) is read at rotary position n + i, as step i + 1 of training was (features/layout).

    rows of the text      in the slots of their tokens, beside the target's       (written by `read`)
    rows of a tree        in a scratch area of the line, forgotten after the round (written by `grow`)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_pool import KVPool
from eyas.model.attention import PackedAttention
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Tree, TreeGrower

MAX_READ_ROWS = 2048  # the most rows of text that one forward of the head reads


class Drafter(Protocol):
    """What drafts, as a round sees it.

    needs_features: it reads what the target's captured layers left, and has `Drafter.extend`.
    """

    @property
    def needs_features(self) -> bool: ...

    def of(self, is_canary: bool) -> "Drafter": ...

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree: ...

    def read(self, lines: Sequence[int], lags: Sequence[int]) -> None: ...


class DrafterSpec(Protocol):
    """What an engine is given to draft with. shape: of every round that no policy decides; shapes: all there may be."""

    @property
    def shape(self) -> TreeShape: ...

    @property
    def shapes(self) -> tuple[TreeShape, ...]: ...

    def build(self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention) -> Drafter: ...


@dataclass(frozen=True)
class Eagle3Spec:
    """What speculation needs beside the target. shape: of every round; with `arms`, the engine chooses among these.

    canary: another head that reads the same layers, for requests that are added for it; its own shape is not used.
    """

    head: Head
    vocab: DraftVocab
    shape: TreeShape
    arms: tuple[Arm, ...] = ()
    canary: "Eagle3Spec | None" = None

    @classmethod
    def on(cls, device: torch.device, head: Head, vocab: DraftVocab, shape: TreeShape) -> "Eagle3Spec":
        """With the head packed for serving, where the target is."""
        return cls(head.to(device).pack_projections(), vocab.to(device), shape)

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """All shapes that a round may have."""
        return (self.shape, *(arm.shape for arm in self.arms if arm.shape is not None))

    def build(self, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention) -> "Eagle3Drafter":
        """The head in the memory of an engine."""
        return Eagle3Drafter(self, target, pool, future_map, prepare)


class Eagle3Drafter:
    """Head and its memory: the slots of the pool, and behind them a scratch area for each line of the table."""

    needs_features = True

    def __init__(
        self, draft: Eagle3Spec, target: Target, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention
    ) -> None:
        """The scratch area is made for the largest of the draft's shapes."""
        head, config = draft.head, draft.head.config
        weight = head.lm_head.weight
        self.head = head
        self.vocab = draft.vocab
        self.target = target
        self.pool = pool
        self.future_map = future_map
        self.prepare_attention = prepare
        self.scratch = max(shape.top_k * max(shape.depth - 1, 1) for shape in draft.shapes)
        num_rows = pool.num_slots + 1 + len(pool.req_to_token_RC) * self.scratch
        shape = (1, 2, num_rows, config.num_kv_heads, config.head_dim)
        self.kv = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.growers: dict[TreeShape, TreeGrower] = {}
        self.canary: Eagle3Drafter | None = None
        if draft.canary is not None:
            other = replace(draft.canary, shape=draft.shape, arms=draft.arms)
            self.canary = Eagle3Drafter(other, target, pool, future_map.for_other_drafter(), prepare)
        future_map.allocate_head_state(config.hidden_size, config.draft_vocab_size, weight)
        pool.allocate_aux(len(config.aux_layer_ids) * config.target_hidden_size)

    def of(self, is_canary: bool) -> "Eagle3Drafter":
        """This one, or that of the other head."""
        if not is_canary:
            return self
        assert self.canary is not None, "there is a second head"
        return self.canary

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Trees of one shape for these lines, from what the last `read` left."""
        count, top_k, device = len(req_slots_B), shape.top_k, req_slots_B.device
        assert top_k * (shape.depth - 1) <= self.scratch, "the scratch area is made for the largest shape"
        if shape not in self.growers:
            self.growers[shape] = TreeGrower(shape, device)
        last_BKD, logits_BV = self.future_map.load_head_state(req_slots_B)
        last_BKD = last_BKD[:, None].expand(-1, top_k, -1)
        area_B1 = self.pool.num_slots + 1 + req_slots_B[:, None] * self.scratch
        area_BE = (area_B1 + torch.arange(top_k * max(shape.depth - 1, 0), device=device)).int()
        starts_B1 = torch.arange(0, (count + 1) * top_k, top_k, dtype=torch.int32, device=device)
        lines, lengths = req_slots_B.int(), lengths_B.int()

        def advance(frontier: Frontier) -> Tensor:
            nonlocal last_BKD
            if frontier.parents_BK is not None:
                rows_BKD = frontier.parents_BK[:, :, None].expand(-1, -1, last_BKD.shape[2])
                last_BKD = last_BKD.gather(1, rows_BKD)
            own_BE = area_BE[:, : (frontier.level + 1) * top_k]
            slots_T = own_BE[:, -top_k:].reshape(-1)
            positions_1T = (lengths_B + frontier.level).repeat_interleave(top_k)[None]
            visible_TE = frontier.visible_BKE.flatten(0, 1)
            rows = AttentionMetadata(starts_B1, lines, lengths, slots_T, own_BE, visible_TE, positions_1T[0].int())
            embeds_1TD = self.target.embed(frontier.tokens_BK.reshape(1, -1))
            hidden_1TD = last_BKD.reshape(1, len(slots_T), -1)
            last_1TD, logits_1TV = self.head.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, self._attend(rows))
            last_BKD = last_1TD.view(count, top_k, -1)
            return logits_1TV.view(count, top_k, -1)

        return self.growers[shape].grow(roots_B, logits_BV, advance, self.vocab.to_target)

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, fresh: "AcceptedTokens") -> None:
        """Read the tokens that a round accepted, with the target's true features. lengths_B: before the round."""
        count, num_rows = fresh.tokens_BS.shape
        device = req_slots_B.device
        steps_S = torch.arange(num_rows, device=device)
        positions_BS = lengths_B[:, None] + steps_S
        starts_B1 = torch.arange(0, (count + 1) * num_rows, num_rows, dtype=torch.int32, device=device)
        own_BE = fresh.slots_BS.int()
        positions_1T = positions_BS.view(1, -1)
        rows = AttentionMetadata(
            starts_B1, req_slots_B.int(), lengths_B.int(), own_BE.view(-1), own_BE, None, positions_1T[0].int()
        )
        embeds_1TD = self.target.embed(fresh.tokens_BS.reshape(1, -1))
        fused_1TD = self.head.fuse_aux(fresh.aux_BSL.reshape(1, count * num_rows, -1))
        last_1TD, logits_1TV = self.head.step_with_logits(embeds_1TD, fused_1TD, positions_1T, self._attend(rows))
        final_B = torch.arange(0, count * num_rows, num_rows, device=device) + accepted_B - 1
        self.future_map.store_head_state(req_slots_B, last_1TD[0, final_B], logits_1TV[0, final_B])

    def read(self, lines: Sequence[int], lags: Sequence[int]) -> None:
        """Read the last `lags` committed tokens of each line: prompts, and what rounds without drafting left.

        The features are those that the target stored. Long ones are read piece by piece.
        """
        for pieces in chunk_reads(lines, lags):
            self._read(pieces)

    def _read(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        """One forward over (line, lag, count): rows length - lag .. length - lag + count - 1 of each line."""
        device, future_map, req_to_token_RC = self.kv.device, self.future_map, self.pool.req_to_token_RC
        req_slots_B, draft_lags_B, counts_B = (torch.tensor(part, device=device) for part in zip(*pieces, strict=True))
        lengths_B = future_map.lengths_R[req_slots_B] - draft_lags_B
        most = max(count for _, _, count in pieces)
        of_T = torch.cat([torch.full((count,), b, device=device) for b, (_, _, count) in enumerate(pieces)])
        step_T = torch.cat([torch.arange(count, device=device) for _, _, count in pieces])
        positions_T = lengths_B[of_T] + step_T
        slots_T = req_to_token_RC[req_slots_B[of_T], positions_T]
        columns_BE = (lengths_B[:, None] + torch.arange(most, device=device)).clamp_(max=req_to_token_RC.shape[1] - 1)
        own_BE = req_to_token_RC[req_slots_B[:, None], columns_BE]
        starts_B1 = torch.cat((counts_B.new_zeros(1), counts_B.cumsum(0))).int()
        rows = AttentionMetadata(
            starts_B1, req_slots_B.int(), lengths_B.int(), slots_T, own_BE, None, positions_T.int()
        )
        assert self.pool.aux_ZL is not None, "the pool keeps features for the head"
        embeds_1TD = self.target.embed(future_map.tokens_RC[req_slots_B[of_T], positions_T + 1][None])
        fused_1TD = self.head.fuse_aux(self.pool.aux_ZL[slots_T][None])
        out_1TD = self.head.step(embeds_1TD, fused_1TD, positions_T[None], self._attend(rows))
        out_BD = out_1TD[0, starts_B1[1:].long() - 1]  # of a prompt's many rows only the last guesses
        self.future_map.store_head_state(req_slots_B, self.head.next_hidden(out_BD), self.head.logits(out_BD))

    def _attend(self, rows: AttentionMetadata) -> PackedAttention:
        return PackedAttention(self.prepare_attention(self.kv, self.pool.req_to_token_RC, rows))


def chunk_reads(lines: Sequence[int], lags: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """What is read at a time: (line, tokens that it lags behind, how many of them), READ_ROWS tokens at most."""
    rest = [(line, lag) for line, lag in zip(lines, lags, strict=True) if lag > 0]
    while rest:
        pieces, later, room = [], [], MAX_READ_ROWS
        for line, lag in rest:
            count = min(lag, room)
            room -= count
            if count:
                pieces.append((line, lag, count))
            if lag > count:
                later.append((line, lag - count))
        yield pieces
        rest = later


@dataclass(frozen=True, eq=False)
class AcceptedTokens:
    """What a round accepted, by path slot: tokens, the slots they are kept in (0: nothing), the target's features."""

    tokens_BS: Tensor
    slots_BS: Tensor
    aux_BSL: Tensor
