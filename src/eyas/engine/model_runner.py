"""Runs forwards on the device: prefill, and rounds of draft -> verify -> extend. It knows request slots, not requests.

B requests, T rows, M tree nodes, S path slots, D hidden, L = 3D captured features, W target vocabulary, E slots of the
own block.

    future map (by request slot)   one round                                                    future map
    tokens, head state             draft: trees -> rerank over the batch
                                   verify: target forward -> accept -> compact -> publish       tokens, lengths
                                   extend: the drafter reads the accepted tokens                head state

The host never waits for a value of the device within a round: tensor shapes depend only on values that the host knows.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import torch
from torch import Tensor

from eyas.drafters.drafter import AcceptedTokens, Drafter, EngineMemory
from eyas.engine.cuda_graphs import CudaGraphRecorder, RoundGraphs
from eyas.engine.forward_rows import ChunkRows, chunk_rows, tree_rows, with_chunks
from eyas.engine.runner_data import (
    NO_OUTPUT,
    PhaseTimes,
    PrefillChunk,
    PrefillOutput,
    RoundBatch,
    RoundOutput,
    VerifiedTrees,
)
from eyas.engine.sampler import Sampler, SamplerBatch
from eyas.kernels.paged_attention import AttentionMetadata
from eyas.memory.kv_cache_manager import TableWrite, merge_writes
from eyas.model.attention import PackedAttention
from eyas.speculation.acceptance_trace import trace_BC
from eyas.staging import to_host
from eyas.tree.node_scale import calibrate, count_graded
from eyas.tree.sampling import Logprobs, compute_logprobs
from eyas.tree.tree import Tree, forward_rows, rerank
from eyas.tree.verify import AcceptedPath, has_rejected_child, verify

# Of the rounds that draft, every GRADE_ROUNDS-th counts its graded nodes; of those with copies or as CUDA graphs, each
# one. The host gets the counts after LEARN_ROUNDS.
GRADE_ROUNDS, LEARN_ROUNDS = 8, 64


class ModelRunner:
    """Target, drafters and their memory on one device. Its methods run on the device stream, one at a time."""

    def __init__(self, memory: EngineMemory, drafters: Sequence[Drafter]) -> None:
        self.memory = memory
        self.target, self.pool, self.future_map = memory.target, memory.pool, memory.future_map
        self.prepare_attention, self.staging = memory.prepare, self.pool.staging
        self.drafters = list(drafters)
        self.sampler = Sampler(len(self.pool.req_to_token_RC), self.target.info.vocab_size, self.staging)
        self.graphs = RoundGraphs(CudaGraphRecorder()) if self.pool.kv.device.type == "cuda" else None
        self._num_drafting = 0  # rounds
        self._drafts_R = torch.zeros(len(self.pool.req_to_token_RC), dtype=torch.bool, device=self.staging.device)
        self._drafting: tuple[int, ...] = ()  # the request slots that are True there

    @property
    def needs_features(self) -> bool:
        """True if the target's captured features are kept for a drafter."""
        return any(drafter.needs_features for drafter in self.drafters)

    def write_table(self, writes: Sequence[TableWrite]) -> None:
        """Writes KV slots into req_to_token with one operation, for the work that follows."""
        if writes:
            table_RC = self.pool.req_to_token_RC
            cells_X, slots_X = self.staging.copy(*merge_writes(writes, table_RC.shape[1]))
            table_RC.put_(cells_X, slots_X)

    def prefill(self, chunks: Sequence[PrefillChunk], num_logprobs: int | None = None) -> PrefillOutput:
        """Runs one forward over the chunks, and samples the next token of each chunk with `samples_token`."""
        rows = chunk_rows(chunks, self.staging, self.future_map, self.pool.req_to_token_RC)
        if rows is None:
            return NO_OUTPUT
        hidden_TD, aux_TL = self._forward(rows.ids_T, rows.metadata)
        return self._end_prefill(rows, self.target.logits(hidden_TD[rows.rows_F]), aux_TL, num_logprobs)

    def _end_prefill(
        self, rows: ChunkRows, logits_FW: Tensor, aux_TL: Tensor | None, num_logprobs: int | None
    ) -> PrefillOutput:
        """Keeps the captured features of a forward over chunks, and samples. logits_FW: those of rows.rows_F."""
        if aux_TL is not None:
            self._store_aux(rows.metadata.slots_T, aux_TL)
        self.future_map.lengths_R[rows.metadata.req_slots_B] = rows.ends_B
        if not rows.sampling_slots:
            return NO_OUTPUT
        batch = self.sampler.batch_for(rows.sampling_slots)
        tokens_F = self.sampler.next_B(logits_FW, batch, rows.ends_F)
        self.future_map.tokens_RC[batch.req_slots_B, rows.ends_F] = tokens_F
        ones_F = torch.ones_like(tokens_F)
        self.sampler.accept(batch, AcceptedPath(tokens_F[:, None], torch.zeros_like(ones_F)[:, None], ones_F))
        return PrefillOutput(to_host(tokens_F), _logprobs_on_host(logits_FW, None, tokens_F, num_logprobs))

    def round(self, batch: RoundBatch) -> RoundOutput:
        """Runs one round. Each request gets at least one token."""
        began_s = time.perf_counter()
        learning = None
        if any(batch.drafts):
            self._num_drafting += 1
            learning = self.drafters[batch.drafter] if self._num_drafting % LEARN_ROUNDS == 0 else None
            self.drafters[batch.drafter].read(tuple(compress(batch.req_slots, batch.drafts)), batch.draft_lags)
        if self.graphs is None or not self._can_record(batch):
            read_s = time.perf_counter() - began_s
            grades = batch.copies is not None or self._num_drafting % GRADE_ROUNDS == 0
            out = self._round(batch, self.sampler.batch_for(batch.req_slots), grades)
            out.times.draft_s += read_s
            return replace(out, read_BC=to_host(out.read_BC), node_counts_SDN2=_counts_on_host(learning))
        rows = self._padded(batch.req_slots)
        recorded = replace(batch, req_slots=(), draft_lags=())  # the part that does not change from round to round
        if batch.shape is not None:
            drafting, size = tuple(compress(batch.req_slots, batch.drafts)), len(rows.req_slots_B)
            if drafting != self._drafting:
                self._drafts_R.zero_().index_fill_(0, self.staging.copy(drafting)[0], True)
                self._drafting = drafting
            recorded = replace(recorded, nodes=size * batch.shape.nodes, drafts=(True,) * size)
        key = batch.shape, batch.drafter
        read_BC = self.graphs.run(key, rows, lambda sampler_batch: self._round(recorded, sampler_batch, True).read_BC)
        num_slots = 1 if batch.shape is None else batch.shape.max_accepted
        read_BC = to_host(read_BC[: len(batch.req_slots)])
        return RoundOutput(read_BC, num_slots, PhaseTimes(), node_counts_SDN2=_counts_on_host(learning))

    def is_warm(self, batch: RoundBatch) -> bool:
        """Returns True if a round like this needs no warm-up, such as the capture of a CUDA graph."""
        if self.graphs is None or not self._can_record(batch):
            return True
        return self.graphs.is_warm((batch.shape, batch.drafter), self._padded(batch.req_slots))

    def _can_record(self, batch: RoundBatch) -> bool:
        """Returns True if the round can run as a CUDA graph: it has no chunks and reports only tokens to the host."""
        if batch.chunks:
            return False
        reports_more = batch.num_logprobs is not None or batch.wants_trees or batch.copies is not None
        return not reports_more and not self.sampler.needs_host(batch.req_slots)

    def _padded(self, req_slots: tuple[int, ...]) -> SamplerBatch:
        return self.sampler.batch_for(req_slots, RoundGraphs.padded_size(len(req_slots)))

    def _round(self, batch: RoundBatch, rows: SamplerBatch, grades: bool) -> RoundOutput:
        """Runs the round; results are still on the device. Rows of the last request slot are padding.

        With `grades`, the graded nodes are counted for the scale of the drafter. In a recorded round, whose batch has
        no req_slots, all requests draft, and only the trees of those that `_drafts_R` names keep more than a root.
        """
        began_s = time.perf_counter()
        req_slots_B = rows.req_slots_B
        if self.graphs is not None:
            self.future_map.lengths_R[-1:].zero_()  # padding never grows
        lengths_B = self.future_map.lengths_R[req_slots_B]
        roots_B = self.future_map.roots_B(req_slots_B, lengths_B)
        drafting_b = None  # the requests that draft; None: all of them, or none
        if not all(batch.drafts):
            (drafting_b,) = self.staging.copy([b for b, drafts in enumerate(batch.drafts) if drafts])
        drafted, sources_BM, tree, rows_T = self._draft(batch, req_slots_B, lengths_B, roots_B, drafting_b)
        drafted_s = time.perf_counter()
        own_BE, logits_TW, aux_TL, prefill = self._verify(tree, rows_T, batch, req_slots_B, lengths_B)
        accepted = verify(tree, self.sampler.next_BM(logits_TW, tree, rows_T, rows, lengths_B))
        self.sampler.accept(rows, accepted)
        slots_BS = self._compact(accepted, own_BE, moves=batch.has_branches)
        rows_BS = aux_BSL = None
        if tree.depth:  # otherwise each row is a root
            rows_BS = forward_rows(accepted.nodes_BS, rows_T, tree.tokens_BM.shape)
        if aux_TL is not None:
            aux_BSL = aux_TL[:, None] if rows_BS is None else aux_TL[rows_BS]
            self._store_aux(slots_BS.view(-1), aux_BSL.flatten(0, 1))
        self.future_map.publish(req_slots_B, accepted.tokens_BS, lengths_B, accepted.lengths_B)
        verified_s = time.perf_counter()
        if any(batch.drafts) and self.drafters[batch.drafter].needs_features:
            assert aux_BSL is not None, "the target was asked for its captured features"
            tokens, accepted_B = AcceptedTokens(accepted.tokens_BS, slots_BS, aux_BSL), accepted.lengths_B
            if drafting_b is not None:  # the drafter reads the tokens of the other requests later, before they draft
                tokens = tokens.select(drafting_b)
                req_slots_B, lengths_B, accepted_B = (one[drafting_b] for one in (req_slots_B, lengths_B, accepted_B))
            self.drafters[batch.drafter].extend(req_slots_B, lengths_B, accepted_B, tokens)
        times = PhaseTimes(drafted_s - began_s, verified_s - drafted_s, time.perf_counter() - verified_s)
        read = [accepted.tokens_BS, accepted.lengths_B[:, None], has_rejected_child(tree, accepted)[:, None]]
        if any(batch.drafts):
            scale = self.drafters[batch.drafter].node_scale
            if grades and scale is not None:
                count_graded(scale.counts_SDN2, tree, drafted, sources_BM, accepted)
            if batch.has_branches and batch.copies is None:
                num_drafting = sum(batch.drafts) if batch.req_slots else self._drafts_R[rows.req_slots_B].sum()
                read.append(trace_BC(tree, accepted, num_drafting))
        broken = frozenset(self.sampler.broken_req_slots)
        parts = (tree.tokens_BM, tree.parents_BM, tree.valid_BM, accepted.nodes_BS)
        trees = VerifiedTrees(*map(to_host, parts)) if batch.wants_trees and batch.shape is not None else None
        logprobs = _logprobs_on_host(logits_TW, rows_BS, accepted.tokens_BS, batch.num_logprobs)
        num_slots = accepted.tokens_BS.shape[1]
        return RoundOutput(torch.cat(read, dim=1), num_slots, times, logprobs, broken, trees, prefill=prefill)

    def _draft(
        self, batch: RoundBatch, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, drafting_b: Tensor | None
    ) -> tuple[Tree, Tensor | None, Tree, Tensor | None]:
        """Returns the drafted trees, the sources of their nodes (None: the head), the trees to verify, and rows_T.

        rows_T says which nodes are verified, row by row; None: all of them.
        """
        if batch.shape is None:
            tree = Tree.root_only(roots_B)
            return tree, None, tree, None
        copies = batch.copies
        if copies is not None and copies.is_alone:
            tree = Tree.root_only(roots_B)
        elif drafting_b is None:
            tree = self.drafters[batch.drafter].draft(req_slots_B, lengths_B, roots_B, batch.shape)
            if not batch.req_slots:
                is_cut_BM = ~self._drafts_R[req_slots_B][:, None] & (tree.depths_BM > 0)
                tree = replace(tree, scores_BM=tree.scores_BM.masked_fill(is_cut_BM, -torch.inf))  # for `rerank`
        else:
            some_b = req_slots_B[drafting_b], lengths_B[drafting_b], roots_B[drafting_b]
            tree = Tree.from_subset(roots_B, self.drafters[batch.drafter].draft(*some_b, batch.shape), drafting_b)
        if copies is None:
            return tree, None, *rerank(tree, batch.nodes)
        scale = None if copies.is_alone else self.drafters[batch.drafter].node_scale
        rows = req_slots_B, lengths_B
        tree, sources_BM, log_shares_SDN = copies.merge_into(tree, self.staging, self.future_map, *rows, scale)
        ranked = tree if log_shares_SDN is None else calibrate(tree, sources_BM, log_shares_SDN)
        return tree, sources_BM, *rerank(ranked, batch.nodes)

    def _verify(
        self, tree: Tree, rows_T: Tensor | None, batch: RoundBatch, req_slots_B: Tensor, lengths_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, PrefillOutput]:
        """Runs the target over the nodes to verify and over the prompt chunks of the round.

        Returns:
            The KV slots of all nodes, the logits and the captured features of the verified nodes, and the result of the
            chunks.
        """
        nodes_M = torch.arange(tree.tokens_BM.shape[1], device=req_slots_B.device)
        own_BE = self.pool.req_to_token_RC[req_slots_B[:, None], lengths_B[:, None] + nodes_M]
        ids_T, metadata = tree_rows(tree, rows_T, req_slots_B, lengths_B, own_BE)
        chunks = None
        if batch.chunks:
            chunks = chunk_rows(batch.chunks, self.staging, self.future_map, self.pool.req_to_token_RC)
        if chunks is None:
            hidden_TD, aux_TL = self._forward(ids_T, metadata)
            return own_BE, self.target.logits(hidden_TD), aux_TL, NO_OUTPUT
        num_nodes = len(ids_T)
        hidden_TD, aux_TL = self._forward(torch.cat((ids_T, chunks.ids_T)), with_chunks(metadata, chunks.metadata))
        chunk_aux_TL = None
        if aux_TL is not None:
            aux_TL, chunk_aux_TL = aux_TL[:num_nodes], aux_TL[num_nodes:]
        logits_TW = self.target.logits(torch.cat((hidden_TD[:num_nodes], hidden_TD[num_nodes + chunks.rows_F])))
        prefill = self._end_prefill(chunks, logits_TW[num_nodes:], chunk_aux_TL, batch.num_chunk_logprobs)
        return own_BE, logits_TW[:num_nodes], aux_TL, prefill

    def _forward(self, ids_T: Tensor, metadata: AttentionMetadata) -> tuple[Tensor, Tensor | None]:
        """Runs the target. Returns the normed final states of the rows, and their captured features, if needed."""
        attend = PackedAttention(self.prepare_attention(self.pool.kv, self.pool.req_to_token_RC, metadata))
        positions_BT = metadata.positions_T.long()[None]
        out = self.target.forward(ids_T[None], positions_BT, attend, want_aux=self.needs_features)
        return out.hidden_BTD[0], None if out.aux_BTL is None else out.aux_BTL[0]

    def _compact(self, accepted: AcceptedPath, own_BE: Tensor, moves: bool) -> Tensor:
        """Moves the keys and values of accepted nodes to the front of the own block.

        Returns:
            slots_BS: the KV slot of each path slot; 0 for an unused path slot.
        """
        num_slots = accepted.tokens_BS.shape[1]
        if num_slots == 1:  # the root's slot, which is used and stays
            return own_BE[:, :1].long()
        slots_BS = own_BE[:, :num_slots].masked_fill(~accepted.is_accepted_BS(), 0).long()
        if moves:
            self.pool.move(own_BE.gather(1, accepted.nodes_BS).view(-1).long(), slots_BS.view(-1))
        return slots_BS

    def _store_aux(self, slots: Tensor, aux: Tensor) -> None:
        """Writes captured features of tokens for the drafters."""
        assert self.pool.aux_ZL is not None, "the pool keeps features for the drafters"
        self.pool.aux_ZL.index_copy_(0, slots.long(), aux.to(self.pool.aux_ZL.dtype))


def _logprobs_on_host(logits_TW: Tensor, rows: Tensor | None, tokens: Tensor, num_top: int | None) -> Logprobs | None:
    """Returns the log-probabilities of tokens after these rows (None: all), in order; None if num_top is None."""
    if num_top is None:
        return None
    found = compute_logprobs(logits_TW if rows is None else logits_TW[rows.view(-1)], tokens.view(-1), num_top)
    return Logprobs(to_host(found.token_logprobs_T), to_host(found.top_TN), to_host(found.top_ids_TN))


def _counts_on_host(drafter: Drafter | None) -> Tensor | None:
    """Returns the counts of the drafter's graded nodes, and begins anew; None without a drafter or without a scale."""
    if drafter is None or drafter.node_scale is None:
        return None
    counts_SDN2 = to_host(drafter.node_scale.counts_SDN2)
    drafter.node_scale.counts_SDN2.zero_()
    return counts_SDN2
