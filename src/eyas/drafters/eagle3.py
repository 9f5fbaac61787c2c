"""The EAGLE-3 head as a drafter. It reads the tokens that the target has committed, and drafts a tree for each round.

B requests, T rows, D hidden, L = 3D captured features, V draft vocabulary, K top-k, S path slots, E slots of the own
block.

With n committed tokens x_0..x_{n - 1} and root x_n, the head has computed rows 0..n - 1. The input of row t is the
features f_t and the embedding of x_{t + 1}. The last row predicts x_{n + 1}, the first level of the tree. A node of
level i (text position n + 1 + i) has rotary position n + i, as in step i + 1 of the training-time test
(features/layout).

    keys and values of    stored in                                               written by           kept
    rows of the text      the head's memory, at the KV slots of their tokens      `read`, `extend`     as the token's
    rows of a tree        a scratch area of each request slot                     `draft`              for one draft
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.drafters.drafter import AcceptedTokens, EngineMemory, chunk_reads
from eyas.drafters.head_spec import HeadDrafter, HeadSpec
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.model.head import Head
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Frontier, Tree


class Eagle3Spec(HeadSpec):
    """An EAGLE-3 head, its draft vocabulary and the shapes of its trees."""

    head: Head

    @property
    def scratch_rows(self) -> int:
        """The number of nodes that the largest tree expands."""
        return max(shape.top_k * max(shape.depth - 1, 1) for shape in self.shapes)

    def build(self, memory: EngineMemory) -> "Eagle3Drafter":
        """Allocates the drafter's own memory for all request slots of the engine, and returns the drafter."""
        return Eagle3Drafter(self, memory)


class Eagle3Drafter(HeadDrafter[Head]):
    """The head with its memory."""

    def __init__(self, spec: Eagle3Spec, memory: EngineMemory) -> None:
        """Allocates the memory."""
        super().__init__(spec, memory)
        config, self.vocab = spec.head.config, spec.vocab
        self.state = self.future_map.new_head_state(config.hidden_size, config.draft_vocab_size, spec.head.norm.weight)

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        """Returns one tree for each request. Its first level uses the logits that `read` or `extend` has stored."""
        count, top_k = len(req_slots_B), shape.top_k
        assert top_k * (shape.depth - 1) <= len(self.scratch_E), "the scratch area fits the largest shape"
        last_BKD, logits_BV = self.state.load(req_slots_B)
        last_BKD = last_BKD[:, None].expand(-1, top_k, -1)
        area_B1 = self.pool.num_slots + 1 + req_slots_B[:, None] * len(self.scratch_E)
        slots_E = self.scratch_E[: top_k * max(shape.depth - 1, 0)]
        area_BE, levels_E = (area_B1 + slots_E).int(), slots_E // top_k

        def advance(frontier: Frontier) -> Tensor:
            nonlocal last_BKD
            if frontier.parents_BK is not None:
                last_BKD = last_BKD.take_along_dim(frontier.parents_BK[:, :, None], 1)
            own_BE = area_BE[:, : (frontier.level + 1) * top_k]
            slots_T = own_BE[:, -top_k:].reshape(-1)
            positions_T = (lengths_B + frontier.level).repeat_interleave(top_k)
            visible_TE = frontier.visible_BKE.flatten(0, 1)
            own_positions_BE = None if self.head.window is None else lengths_B[:, None] + levels_E[: own_BE.shape[1]]
            metadata = AttentionMetadata.uniform(
                req_slots_B, lengths_B, slots_T, own_BE, positions_T, visible_TE, own_positions_BE
            )
            embeds_1TD = self.target.embed(frontier.tokens_BK.reshape(1, -1))
            inputs = embeds_1TD, last_BKD.reshape(1, len(slots_T), -1), positions_T[None]
            attention = self.attend_with_sinks(metadata)
            last_1TD, logits_1TV = self.head.step_with_logits(*inputs, attention)
            last_BKD = last_1TD.view(count, top_k, -1)
            return logits_1TV.view(count, top_k, -1)

        return self.grower(shape).grow(roots_B, logits_BV, advance, self.vocab.to_target)

    def extend(self, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, tokens: AcceptedTokens) -> None:
        """Reads the tokens that a round accepted, with the features that the target computed for them."""
        (count, num_rows), device = tokens.tokens_BS.shape, req_slots_B.device
        positions_T = (lengths_B[:, None] + torch.arange(num_rows, device=device)).view(-1)
        own_BE = tokens.slots_BS.int()
        metadata = AttentionMetadata.uniform(req_slots_B, lengths_B, own_BE.view(-1), own_BE, positions_T)
        embeds_1TD = self.target.embed(tokens.tokens_BS.reshape(1, -1))
        fused_1TD = self.head.fuse_aux(tokens.aux_BSL.reshape(1, count * num_rows, -1))
        inputs = embeds_1TD, fused_1TD, positions_T[None]
        last_1TD, logits_1TV = self.head.step_with_logits(*inputs, self.attend_with_sinks(metadata))
        final_B = torch.arange(0, count * num_rows, num_rows, device=device) + accepted_B - 1
        self.state.store(req_slots_B, last_1TD[0, final_B], logits_1TV[0, final_B])

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        """Reads the last `draft_lags` committed tokens of each request, with the target's features from the pool."""
        for reads in chunk_reads(req_slots, draft_lags):
            self._read(reads)

    def _read(self, reads: Sequence[tuple[int, int, int]]) -> None:
        """Runs one forward over some unread tokens of several requests (see `stage_reads`).

        It stores the outputs of each request's last row.
        """
        device, future_map, req_to_token_RC = self.kv.device, self.future_map, self.pool.req_to_token_RC
        req_slots_B, lengths_B, starts_B1, req_slots_T, positions_T, slots_T = self.stage_reads(reads)
        num_own, last_column = max(count for _, _, count in reads), req_to_token_RC.shape[1] - 1
        columns_BE = (lengths_B[:, None] + torch.arange(num_own, device=device)).clamp_(max=last_column)
        own_BE = req_to_token_RC[req_slots_B[:, None], columns_BE]
        ints = starts_B1.int(), req_slots_B.int(), lengths_B.int()
        metadata = AttentionMetadata(*ints, slots_T, own_BE, None, positions_T.int())
        assert self.pool.aux_ZL is not None, "the pool keeps features for the head"
        embeds_1TD = self.target.embed(future_map.tokens_RC[req_slots_T, positions_T + 1][None])
        fused_1TD = self.head.fuse_aux(self.pool.aux_ZL[slots_T][None])
        out_1TD = self.head.step(embeds_1TD, fused_1TD, positions_T[None], self.attend(metadata))
        out_BD = out_1TD[0, starts_B1[1:] - 1]  # of a prompt's many rows only the last one predicts
        self.state.store(req_slots_B, self.head.next_hidden(out_BD), self.head.logits(out_BD))
