"""What the device does: prefill, and rounds of draft -> verify -> extend. Runs where the stream runs, sees no request.

B requests, T rows, M tree nodes, S path slots, D hidden, L = 3D, W target vocabulary.

    future_map (by line)         one round                                                         future_map
    tokens, hidden, logits  draft: trees -> rerank over the batch -> verify: target forward
                            -> accept -> compact -> publish: lengths, tokens
                            -> extend: the head reads what was accepted                    -> hidden, logits

No step reads a number back: shapes follow from what the host knows, lengths stay on the device.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from eyas.drafters.eagle3 import AcceptedTokens, Drafter, Eagle3Drafter
from eyas.engine.cuda_graphs import CudaGraphRecorder, RoundGraphs
from eyas.engine.device_stream import to_host
from eyas.engine.sampler import Sampler, SamplerBatch
from eyas.kernels.paged_attention import AttentionMetadata, PrepareAttention
from eyas.memory.future_map import FutureMap
from eyas.memory.kv_cache_manager import TableWrite
from eyas.memory.kv_pool import KVPool
from eyas.model.attention import PackedAttention
from eyas.model.target import Target, TargetOutput
from eyas.speculation.acceptance_trace import trace_BC
from eyas.tree.sampling import Logprobs, compute_logprobs
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree, rerank
from eyas.tree.verify import AcceptedPath, has_rejected_child, verify


@dataclass(frozen=True)
class PrefillChunk:
    """A part of a text to be read into memory: ids[begin:end] of a text in a line.

    starts: the text is new in this line, and `begin` tokens of it are there already. samples: the row of the last token
    decides the next one; otherwise the text goes on, with a later piece or with a root that is part of `ids`.
    """

    req_slot: int
    ids: Sequence[int]
    begin: int
    end: int
    is_first: bool
    samples_token: bool


@dataclass(frozen=True)
class RoundBatch:
    """One round. shape: None for a round without drafting. drafts: which lines draft; the others are roots alone.

    nodes: rows that the target verifies, roots included. lags: committed tokens that the head has not read, of each
    line that drafts.
    num_logprobs: so many alternatives are asked for; None: no log-probabilities at all. wants_trees: somebody asks.
    is_canary: which head drafts.
    """

    req_slots: tuple[int, ...]
    shape: TreeShape | None = None
    nodes: int = 0
    drafts: tuple[bool, ...] = ()
    draft_lags: tuple[int, ...] = ()
    num_logprobs: int | None = None
    wants_trees: bool = False
    is_canary: bool = False


@dataclass(frozen=True, eq=False)
class VerifiedTrees:
    """The round's trees and the paths that were taken, on the host; see `Tree` and `Accepted`."""

    tokens_BM: Tensor
    parents_BM: Tensor
    valid_BM: Tensor
    nodes_BS: Tensor


@dataclass(frozen=True, eq=False)
class RoundOutput:
    """What the host gets to see of a round, behind its event.

    read_BC: int64, one copy for everything: tokens of the S path slots | accepted length | 1 if the tree offered a
    continuation that the target refused | `evidence.trace_BC`, in rounds that drafted trees. logprobs: of [B * S] path
    slots.
    broken: lines whose answer can no longer follow its grammar. trees: if somebody asks for them and some draft.
    """

    read_BC: Tensor
    num_slots: int
    times: "PhaseTimes"
    logprobs: Logprobs | None = None
    broken_req_slots: frozenset[int] = frozenset()
    trees: VerifiedTrees | None = None


@dataclass
class PhaseTimes:
    """Where the time of a round went, in seconds: the device's on a CPU, that of queueing on CUDA, 0 for a graph."""

    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0


@dataclass(frozen=True, eq=False)
class PrefillOutput:
    """The next token of each piece that `samples`, in order."""

    tokens: Tensor
    logprobs: Logprobs | None = None


class ModelRunner:
    """Target, drafter and their memory. One closure of it runs at a time."""

    def __init__(
        self, target: Target, drafter: Drafter | None, pool: KVPool, future_map: FutureMap, prepare: PrepareAttention
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.pool = pool
        self.future_map = future_map
        self.prepare_attention = prepare
        self.sampler = Sampler(len(pool.req_to_token_RC), target.info.vocab_size, pool.kv.device)
        self.graphs = RoundGraphs(CudaGraphRecorder()) if pool.kv.device.type == "cuda" else None

    @property
    def needs_features(self) -> bool:
        """Whether the target's captured layers are kept."""
        return self.drafter is not None and self.drafter.needs_features

    def write_table(self, writes: Sequence[TableWrite]) -> None:
        """Give slots to lines; what earlier work reads of the table it has read by then."""
        for one in writes:
            slots = torch.from_numpy(one.slots).to(self.pool.req_to_token_RC.device, non_blocking=True)
            self.pool.req_to_token_RC[one.req_slot, one.column : one.column + len(one.slots)] = slots

    def prefill(self, pieces: Sequence[PrefillChunk], num_logprobs: int | None = None) -> PrefillOutput:
        """Read parts of texts in one forward. Texts that begin are put into the future_map first."""
        device, future_map, req_to_token_RC = self.pool.kv.device, self.future_map, self.pool.req_to_token_RC
        for piece in pieces:
            if piece.is_first:
                future_map.start_sequence(piece.req_slot, torch.tensor(piece.ids, device=device), piece.begin)
        some = [piece for piece in pieces if piece.end > piece.begin]
        if not some:
            return PrefillOutput(torch.empty(0, dtype=torch.int64))
        counts = [piece.end - piece.begin for piece in some]
        ids_T = torch.tensor([token for piece in some for token in piece.ids[piece.begin : piece.end]], device=device)
        positions_T = torch.cat([torch.arange(piece.begin, piece.end, device=device) for piece in some])
        req_slots_T = torch.cat(
            [torch.full((n,), p.req_slot, device=device) for n, p in zip(counts, some, strict=True)]
        )
        starts_B1 = torch.tensor([0, *counts], device=device).cumsum(0).int()
        req_slots_B = torch.tensor([piece.req_slot for piece in some], dtype=torch.int32, device=device)
        begins_B = torch.tensor([piece.begin for piece in some], dtype=torch.int32, device=device)
        columns_BE = begins_B[:, None] + torch.arange(max(counts), dtype=torch.int32, device=device)
        own_BE = req_to_token_RC[req_slots_B[:, None], columns_BE.clamp_(max=req_to_token_RC.shape[1] - 1)]
        slots_T = req_to_token_RC[req_slots_T, positions_T]
        rows = AttentionMetadata(starts_B1, req_slots_B, begins_B, slots_T, own_BE, None, positions_T.int())
        out = self._forward(ids_T, positions_T, rows)
        if out.aux_BTL is not None:
            self._store_aux(slots_T, out.aux_BTL[0])
        ends_B = torch.tensor([piece.end for piece in some], device=device)
        future_map.lengths_R[req_slots_B] = ends_B
        final = [b for b, piece in enumerate(some) if piece.samples_token]
        tokens_B, told = torch.empty(0, dtype=torch.int64), None
        if final:
            logits_BW = self.target.logits(out.hidden_BTD[0, starts_B1[1:][final].long() - 1])
            req_slots_B, ends_B = req_slots_B[final].long(), ends_B[final]
            lines = self.sampler.batch_for(tuple(some[b].req_slot for b in final))
            tokens_B = self.sampler.next_B(logits_BW, lines, ends_B)
            future_map.tokens_RC[req_slots_B, ends_B] = tokens_B
            ones_B = torch.ones_like(req_slots_B)
            self.sampler.accept(lines, AcceptedPath(tokens_B[:, None], torch.zeros_like(ones_B)[:, None], ones_B))
            told = _logprobs_on_host(logits_BW, torch.arange(len(final), device=device), tokens_B, num_logprobs)
        return PrefillOutput(to_host(tokens_B), told)

    def round(self, batch: RoundBatch) -> RoundOutput:
        """One round for these lines: each gets at least one token."""
        began_s = time.perf_counter()
        if batch.shape is not None:
            self._drafter(batch).read(tuple(compress(batch.req_slots, batch.drafts)), batch.draft_lags)
        if self.graphs is None or not self._is_uniform(batch):
            read_s = time.perf_counter() - began_s
            out = self._round(batch, self.sampler.batch_for(batch.req_slots))
            out.times.draft_s += read_s
            return replace(out, read_BC=to_host(out.read_BC))
        lines = self._padded(batch.req_slots)
        alike = replace(batch, req_slots=(), draft_lags=())  # nothing of it changes from round to round
        if batch.shape is not None:
            size = len(lines.req_slots_B)
            alike = replace(alike, nodes=size * batch.shape.nodes, drafts=(True,) * size)
        read_BC = self.graphs.run(
            (batch.shape, batch.is_canary), lines, lambda lines: self._round(alike, lines).read_BC
        )
        return RoundOutput(
            to_host(read_BC[: len(batch.req_slots)]),
            1 if batch.shape is None else batch.shape.max_accepted,
            PhaseTimes(),
        )

    def is_warm(self, batch: RoundBatch) -> bool:
        """Whether a round like this costs what all later ones will."""
        if self.graphs is None or not self._is_uniform(batch):
            return True
        return self.graphs.is_warm((batch.shape, batch.is_canary), self._padded(batch.req_slots))

    def _is_uniform(self, batch: RoundBatch) -> bool:
        """Whether the round does the same for all its lines, and needs nothing of the host: it may be recorded."""
        tells_more = batch.num_logprobs is not None or batch.wants_trees
        return not tells_more and all(batch.drafts) and not self.sampler.needs_host(batch.req_slots)

    def _padded(self, lines: tuple[int, ...]) -> SamplerBatch:
        return self.sampler.batch_for(lines, RoundGraphs.padded_size(len(lines)))

    def _round(self, batch: RoundBatch, lines: SamplerBatch) -> RoundOutput:
        """The round itself; what it tells is still on the device. Rows of the spare line are padding."""
        times = PhaseTimes()
        began_s = time.perf_counter()
        req_slots_B = lines.req_slots_B
        if self.graphs is not None:
            self.future_map.lengths_R[-1:].zero_()  # the spare line never grows
        lengths_B = self.future_map.lengths_R[req_slots_B]
        roots_B = self.future_map.roots_B(req_slots_B, lengths_B)
        tree, rows_T = self._draft(batch, req_slots_B, lengths_B, roots_B)
        drafted_s = time.perf_counter()
        own_BE, out = self._verify(tree, rows_T, req_slots_B, lengths_B)
        logits_TW = self.target.logits(out.hidden_BTD[0])
        accepted = verify(tree, self.sampler.next_BM(logits_TW, tree, rows_T, lines, lengths_B))
        self.sampler.accept(lines, accepted)
        slots_BS = self._compact(accepted, own_BE, moves=batch.shape is not None and batch.shape.top_k > 1)
        rows_BS = _forward_rows(accepted.nodes_BS, rows_T, tree.tokens_BM.shape)
        aux_BSL = None
        if out.aux_BTL is not None:
            aux_BSL = out.aux_BTL[0, rows_BS]
            self._store_aux(slots_BS.view(-1), aux_BSL.flatten(0, 1))
        self.future_map.publish(req_slots_B, accepted.tokens_BS, lengths_B, accepted.lengths_B)
        verified_s = time.perf_counter()
        if batch.shape is not None and self.needs_features:
            assert aux_BSL is not None, "the target was asked for its captured layers"
            fresh = AcceptedTokens(accepted.tokens_BS, slots_BS, aux_BSL)
            self._extend(batch, req_slots_B, lengths_B, accepted.lengths_B, fresh)
        times.draft_s, times.verify_s = drafted_s - began_s, verified_s - drafted_s
        times.extend_s = time.perf_counter() - verified_s
        read = [accepted.tokens_BS, accepted.lengths_B[:, None], has_rejected_child(tree, accepted)[:, None]]
        if any(batch.drafts) and batch.shape is not None and batch.shape.top_k > 1:
            read.append(self._trace_BC(batch, lines, tree, accepted))
        told = _logprobs_on_host(logits_TW, rows_BS.view(-1), accepted.tokens_BS.view(-1), batch.num_logprobs)
        broken = frozenset(self.sampler.broken_req_slots)
        trees = _trees_on_host(tree, accepted) if batch.wants_trees and any(batch.drafts) else None
        return RoundOutput(torch.cat(read, dim=1), accepted.tokens_BS.shape[1], times, told, broken, trees)

    def _trace_BC(self, batch: RoundBatch, lines: SamplerBatch, tree: Tree, accepted: AcceptedPath) -> Tensor:
        """Evidence of those who draft. Padding has a tree like all others, which says nothing."""
        if self.graphs is None or not all(batch.drafts):
            return trace_BC(tree, accepted, sum(batch.drafts))
        real_B = lines.req_slots_B < len(self.pool.req_to_token_RC) - 1
        is_root_M = torch.arange(tree.tokens_BM.shape[1], device=real_B.device) == 0
        told = replace(tree, valid_BM=tree.valid_BM & (real_B[:, None] | is_root_M))
        return trace_BC(told, accepted, real_B.sum())

    def _draft(
        self, batch: RoundBatch, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor
    ) -> tuple[Tree, Tensor | None]:
        """Trees, and which of their nodes are verified (row by row, None: all of them)."""
        if batch.shape is None:
            return Tree.root_only(roots_B), None
        drafter = self._drafter(batch)
        if all(batch.drafts):
            return rerank(drafter.draft(req_slots_B, lengths_B, roots_B, batch.shape), batch.nodes)
        who = _drafting_indices(batch, req_slots_B.device)
        some = drafter.draft(req_slots_B[who], lengths_B[who], roots_B[who], batch.shape)
        return rerank(Tree.from_subset(roots_B, some, who), batch.nodes)

    def _extend(
        self, batch: RoundBatch, req_slots_B: Tensor, lengths_B: Tensor, accepted_B: Tensor, fresh: AcceptedTokens
    ) -> None:
        """The head reads on for those who drafted; the others' tokens it reads when they draft again."""
        drafter = self._drafter(batch)
        assert isinstance(drafter, Eagle3Drafter), "a head reads features"
        if all(batch.drafts):
            drafter.extend(req_slots_B, lengths_B, accepted_B, fresh)
            return
        who = _drafting_indices(batch, req_slots_B.device)
        some = AcceptedTokens(fresh.tokens_BS[who], fresh.slots_BS[who], fresh.aux_BSL[who])
        drafter.extend(req_slots_B[who], lengths_B[who], accepted_B[who], some)

    def _drafter(self, batch: RoundBatch) -> Drafter:
        drafter = self.drafter
        assert drafter is not None, "drafting needs a head"
        return drafter.of(batch.is_canary)

    def _verify(
        self, tree: Tree, rows_T: Tensor | None, req_slots_B: Tensor, lengths_B: Tensor
    ) -> tuple[Tensor, TargetOutput]:
        """The target over the chosen nodes; own_BE: the slots of all nodes."""
        count, num_nodes = tree.tokens_BM.shape
        nodes_M = torch.arange(num_nodes, device=req_slots_B.device)
        own_BE = self.pool.req_to_token_RC[req_slots_B[:, None], lengths_B[:, None] + nodes_M]
        positions_BM = lengths_B[:, None] + tree.depths_BM
        visible_BMM = None if tree.is_chain and rows_T is None else tree.ancestors_BMM()
        if rows_T is None:
            starts_B1 = torch.arange(
                0, (count + 1) * num_nodes, num_nodes, dtype=torch.int32, device=req_slots_B.device
            )
            ids_T, positions_T, slots_T = tree.tokens_BM.reshape(-1), positions_BM.view(-1), own_BE.view(-1)
            visible_TE = None if visible_BMM is None else visible_BMM.flatten(0, 1)
        else:
            assert visible_BMM is not None, "a choice among nodes is a tree"
            ends_B = torch.searchsorted(rows_T, torch.arange(1, count + 1, device=rows_T.device) * num_nodes)
            starts_B1 = torch.cat((ends_B.new_zeros(1), ends_B)).int()
            ids_T, positions_T = tree.tokens_BM.reshape(-1)[rows_T], positions_BM.view(-1)[rows_T]
            slots_T, visible_TE = own_BE.view(-1)[rows_T], visible_BMM.flatten(0, 1)[rows_T]
        rows = AttentionMetadata(
            starts_B1, req_slots_B.int(), lengths_B.int(), slots_T, own_BE, visible_TE, positions_T.int()
        )
        return own_BE, self._forward(ids_T, positions_T, rows)

    def _forward(self, ids_T: Tensor, positions_T: Tensor, rows: AttentionMetadata) -> TargetOutput:
        attend = PackedAttention(self.prepare_attention(self.pool.kv, self.pool.req_to_token_RC, rows))
        return self.target.forward(ids_T[None], positions_T[None], attend, want_aux=self.needs_features)

    def _compact(self, accepted: AcceptedPath, own_BE: Tensor, moves: bool) -> Tensor:
        """Move the accepted rows to the front of the own block; slots_BS: where each path slot is kept (0: nothing)."""
        num_slots = accepted.tokens_BS.shape[1]
        slots_BS = own_BE[:, :num_slots].masked_fill(~accepted.is_accepted_BS(), 0).long()
        if moves:
            self.pool.move(own_BE.gather(1, accepted.nodes_BS).view(-1).long(), slots_BS.view(-1))
        return slots_BS

    def _store_aux(self, slots: Tensor, aux: Tensor) -> None:
        """Keep the features of these tokens for the head."""
        assert self.pool.aux_ZL is not None, "the pool keeps features for the head"
        self.pool.aux_ZL.index_copy_(0, slots.long(), aux.to(self.pool.aux_ZL.dtype))


def _drafting_indices(batch: RoundBatch, device: torch.device) -> Tensor:
    """The numbers of the requests that draft."""
    return torch.tensor([b for b, drafts in enumerate(batch.drafts) if drafts], device=device)


def _logprobs_on_host(logits_TW: Tensor, rows_X: Tensor, tokens_X: Tensor, num_top: int | None) -> Logprobs | None:
    """Log-probabilities of these tokens after these rows, if somebody asks."""
    if num_top is None:
        return None
    told = compute_logprobs(logits_TW[rows_X], tokens_X, num_top)
    return Logprobs(to_host(told.token_logprobs_T), to_host(told.top_TN), to_host(told.top_ids_TN))


def _trees_on_host(tree: Tree, accepted: AcceptedPath) -> VerifiedTrees:
    parts = (tree.tokens_BM, tree.parents_BM, tree.valid_BM, accepted.nodes_BS)
    return VerifiedTrees(*(to_host(part) for part in parts))


def _forward_rows(nodes_BS: Tensor, rows_T: Tensor | None, shape: Any) -> Tensor:
    """The rows of the forward in which these nodes stood."""
    count, num_nodes = shape
    flat_BS = nodes_BS + torch.arange(0, count * num_nodes, num_nodes, device=nodes_BS.device)[:, None]
    if rows_T is None:
        return flat_BS
    row_of_X = torch.zeros(count * num_nodes, dtype=torch.int64, device=nodes_BS.device)
    row_of_X[rows_T] = torch.arange(len(rows_T), device=nodes_BS.device)
    return row_of_X[flat_BS]
