"""Chooses the next token of each row: the sampling parameters of each request, applied to the logits of a forward.

T rows, B requests, M tree nodes, S path slots, W target vocabulary, R request slots.

    logits -> bias and penalties (by path) -> grammar mask (by path) -> argmax, or a draw by the position's uniform

It runs on the device's side: `admit` and `accept` are part of the launched work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.base.errors import InputError
from eyas.engine.min_length import MinLengthState
from eyas.engine.request import Request
from eyas.staging import Staging
from eyas.tree.penalties import NodePaths, PenaltyState
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms, settings_array
from eyas.tree.tree import Tree
from eyas.tree.verify import AcceptedPath

if TYPE_CHECKING:  # llguidance is imported only where grammars are built
    from eyas.engine.grammar import GrammarState


@dataclass(frozen=True, eq=False)
class SamplerBatch:
    """The requests of one forward with their sampling settings.

    Attributes:
        req_slots_B: The request slots, on the device.
        settings: The sampling settings of each request.
        grammar_req_slots: The request slots, on the host, if at least one request has a grammar; else empty.
    """

    req_slots_B: Tensor
    settings: SamplingBatch
    grammar_req_slots: tuple[int, ...] = ()


class Sampler:
    """The sampling state of all request slots: their settings, token counts for penalties, and grammar states."""

    def __init__(self, num_req_slots: int, vocab_size: int, staging: Staging) -> None:
        self.staging = staging
        self.seeds_R = torch.zeros(num_req_slots, dtype=torch.int64, device=staging.device)
        self.penalties = PenaltyState(num_req_slots, vocab_size, staging)
        self._settings_RC = settings_array([SamplingParams()] * num_req_slots)
        self._adjusts = [False] * num_req_slots  # True where penalties or a bias change the logits
        self._grammars: dict[int, GrammarState | MinLengthState] = {}
        self.broken_req_slots: set[int] = set()  # outputs that exceed the limits of their grammar
        self._cached_batch: tuple[tuple[tuple[int, ...], int], SamplerBatch] | None = None

    def admit(self, req_slot: int, request: Request, text: Sequence[int]) -> None:
        """Initializes a request slot. text: the prompt and, of a preempted request, the output so far."""
        output_ids = text[len(request.prompt_ids) :]
        self.seeds_R[req_slot].fill_(request.seed)
        self.penalties.admit(req_slot, request.sampling, request.prompt_ids, output_ids)
        self._adjusts[req_slot] = request.sampling.adjusts_logits
        self._settings_RC[req_slot] = settings_array([request.sampling])
        self._grammars.pop(req_slot, None)
        self.broken_req_slots.discard(req_slot)
        if request.grammar is not None:
            state = self._grammars[req_slot] = request.grammar.start()
            state.advance(output_ids)
        self._cached_batch = None

    def batch_for(self, req_slots: tuple[int, ...], size: int | None = None) -> SamplerBatch:
        """Returns the batch of these request slots; built again only when the batch changes.

        Args:
            req_slots: the request slots.
            size: the padded batch size; None for no padding. Padding rows use the last request slot.
        """
        key = req_slots, len(req_slots) if size is None else size
        if self._cached_batch is None or self._cached_batch[0] != key:
            all_B = np.array([*req_slots, *[len(self._adjusts) - 1] * (key[1] - len(req_slots))])
            host_RC, adjusts = self._settings_RC[all_B], any(map(self._adjusts.__getitem__, req_slots))
            req_slots_B, settings_RC = self.staging.copy(all_B, host_RC)
            settings = SamplingBatch.from_settings(host_RC, settings_RC, adjusts)
            grammar_req_slots = req_slots if self.needs_host(req_slots) else ()
            self._cached_batch = (key, SamplerBatch(req_slots_B, settings, grammar_req_slots))
        return self._cached_batch[1]

    def needs_host(self, req_slots: Sequence[int]) -> bool:
        """Returns True if a request has a grammar: its tokens need the tree on the host."""
        return not self._grammars.keys().isdisjoint(req_slots)

    def next_B(self, logits_BW: Tensor, batch: SamplerBatch, positions_B: Tensor) -> Tensor:
        """Returns the next token of each request after a prefill.

        Args:
            logits_BW: the logits of each request's last token.
            batch: the requests.
            positions_B: the text positions of the next tokens.
        """
        settings = batch.settings
        if settings.adjusts:
            logits_BW = self.penalties.apply(logits_BW, batch.req_slots_B, None)
        rows = [row for row, req_slot in enumerate(batch.grammar_req_slots) if req_slot in self._grammars]
        masks = [self._allowed(batch.grammar_req_slots[row], [0], [0], [True]) for row in rows]
        logits_BW = self._mask_rows(logits_BW, rows, masks)
        request_B = torch.arange(len(batch.req_slots_B), device=self.staging.device)
        return choose_tokens(logits_BW, settings, request_B, self._uniforms_T(batch, request_B, positions_B))

    def next_BM(
        self, logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, batch: SamplerBatch, lengths_B: Tensor
    ) -> Tensor:
        """Returns the token that follows each node; 0 for a node without a row in the forward."""
        shape = num_requests, num_nodes = tree.tokens_BM.shape
        settings = batch.settings
        if settings.all_greedy and not settings.adjusts and not batch.grammar_req_slots:
            ids_T = choose_tokens(logits_TW, settings, lengths_B, None)
        else:
            node_T = torch.arange(num_requests * num_nodes, device=self.staging.device) if rows_T is None else rows_T
            request_T = node_T // num_nodes
            if settings.adjusts:
                paths = NodePaths.from_tree(tree, rows_T)
                logits_TW = self.penalties.apply(logits_TW, batch.req_slots_B[request_T], paths)
            logits_TW = self._apply_grammars(logits_TW, tree, rows_T, batch.grammar_req_slots)
            positions_T = (lengths_B[:, None] + 1 + tree.depths_BM).view(-1)[node_T]
            ids_T = choose_tokens(logits_TW, settings, request_T, self._uniforms_T(batch, request_T, positions_T))
        if rows_T is None:
            return ids_T.view(shape)
        return ids_T.new_zeros(num_requests * num_nodes).index_copy_(0, rows_T, ids_T).view(shape)

    def _uniforms_T(self, batch: SamplerBatch, request_T: Tensor, positions_T: Tensor) -> Tensor | None:
        """Returns the random number of each row, from the request's seed and the position; None if all are greedy."""
        if batch.settings.all_greedy:
            return None
        return position_uniforms(self.seeds_R[batch.req_slots_B[request_T]], positions_T)

    def accept(self, batch: SamplerBatch, accepted: AcceptedPath) -> None:
        """Appends accepted tokens to the state of penalties and grammars."""
        self.penalties.update(batch.req_slots_B, accepted.tokens_BS, accepted.lengths_B)
        if not batch.grammar_req_slots:
            return
        tokens_BS, lengths_B = self.staging.read_now(accepted.tokens_BS, accepted.lengths_B)
        for req_slot, tokens, length in zip(batch.grammar_req_slots, tokens_BS, lengths_B, strict=False):
            state = self._grammars.get(req_slot)
            if state is not None:
                # A run may reach beyond the end of its output, and a round may follow it: the host cuts both.
                for token in tokens[:length]:
                    if not state.is_finished and req_slot not in self.broken_req_slots:
                        state.advance([token])

    def _allowed(self, req_slot: int, tokens: list[int], parents: list[int], valid: list[bool]) -> NDArray[np.bool_]:
        """Returns the tokens that the grammar allows after each node; all tokens once the output exceeds its limits."""
        if req_slot not in self.broken_req_slots:
            try:
                return self._grammars[req_slot].allow(tokens, parents, valid).numpy()
            except InputError:
                self.broken_req_slots.add(req_slot)
        return np.ones((len(tokens), self.penalties.vocab_size), np.bool_)

    def _apply_grammars(self, logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, req_slots: Sequence[int]) -> Tensor:
        """Masks the tokens that grammars forbid after each node. Reads the trees on the host if there is a grammar."""
        if not req_slots:
            return logits_TW
        num_nodes = tree.tokens_BM.shape[1]
        node_T = torch.arange(tree.tokens_BM.numel(), device=self.staging.device) if rows_T is None else rows_T
        *trees, nodes = self.staging.read_now(tree.tokens_BM, tree.parents_BM, tree.valid_BM, node_T)
        rows, masks = [], []
        for b, req_slot in enumerate(req_slots):
            if req_slot in self._grammars:
                own = [t for t, node in enumerate(nodes) if node // num_nodes == b]
                allowed_MW = self._allowed(req_slot, *(part[b] for part in trees))
                masks.append(allowed_MW[[nodes[t] % num_nodes for t in own]])
                rows += own
        return self._mask_rows(logits_TW, rows, masks)

    def _mask_rows(self, logits_TW: Tensor, rows: list[int], masks: list[NDArray[np.bool_]]) -> Tensor:
        """Returns a copy in which the named rows keep only allowed tokens. masks: [rows, W], in parts."""
        if not rows:
            return logits_TW
        index_X, allowed_XW = self.staging.copy(rows, np.concatenate(masks))
        logits_TW = logits_TW.float().clone()
        logits_TW[index_X] = logits_TW[index_X].masked_fill(~allowed_XW, -torch.inf)
        return logits_TW
