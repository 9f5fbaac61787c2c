"""Which token comes next: the settings of each request, applied to the logits of a forward.

T rows, B requests, M tree nodes, S path slots, W target vocabulary, R lines.

    logits -> bias and penalties (by path) -> grammar mask (by path) -> argmax, or a draw with the coin of the position

Lives on the device's side: `admit` and `take` are part of the work that is launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.engine.grammar import GrammarState
from eyas.engine.request import Request
from eyas.tree.penalties import NodePaths, PenaltyState
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms
from eyas.tree.tree import Tree
from eyas.tree.verify import AcceptedPath


@dataclass(frozen=True, eq=False)
class SamplerBatch:
    """The requests of one forward: their lines on the device, and what their tokens are chosen by.

    numbers: the lines as the host knows them, for those with a grammar; none where no line has one.
    """

    req_slots_B: Tensor
    settings: SamplingBatch
    grammar_req_slots: tuple[int, ...] = ()


class Sampler:
    """The settings of all lines, and what their answers have said so far as far as settings depend on it."""

    def __init__(self, num_lines: int, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self.seeds_R = torch.zeros(num_lines, dtype=torch.int64, device=device)
        self.penalties = PenaltyState(num_lines, vocab_size, device)
        self._samplings = [SamplingParams()] * num_lines
        self._grammars: dict[int, GrammarState] = {}
        self.broken_req_slots: set[int] = set()  # lines whose answer has outgrown what their grammar can follow
        self._cached_batch: tuple[tuple[tuple[int, ...], int], SamplerBatch] | None = None

    def admit(self, line: int, request: Request, text: Sequence[int]) -> None:
        """A request takes the line. text: its prompt, and behind it what it has said before it was preempted."""
        said = text[len(request.prompt_ids) :]
        self.seeds_R[line] = request.seed
        self.penalties.admit(line, request.sampling, request.prompt_ids, said)
        self._samplings[line] = request.sampling
        self._grammars.pop(line, None)
        self.broken_req_slots.discard(line)
        if request.grammar is not None:
            state = self._grammars[line] = request.grammar.start()
            state.advance(said)
        self._cached_batch = None

    def batch_for(self, numbers: tuple[int, ...], size: int | None = None) -> SamplerBatch:
        """What this object knows of these lines; made anew only when the batch changes.

        size: of a larger batch, whose other rows belong to the last line, which no request has, and are greedy.
        """
        key = numbers, len(numbers) if size is None else size
        if self._cached_batch is None or self._cached_batch[0] != key:
            padding = key[1] - len(numbers)
            all_B = [*numbers, *[len(self._samplings) - 1] * padding]
            settings = SamplingBatch.from_params([self._samplings[line] for line in all_B], self.device)
            req_slots_B = torch.tensor(all_B, device=self.device)
            self._cached_batch = key, SamplerBatch(req_slots_B, settings, numbers if self.needs_host(numbers) else ())
        return self._cached_batch[1]

    def needs_host(self, numbers: Sequence[int]) -> bool:
        """Whether a token of these lines cannot be chosen before the host has seen the tree: there is a grammar."""
        return not self._grammars.keys().isdisjoint(numbers)

    def next_B(self, logits_BW: Tensor, lines: SamplerBatch, positions_B: Tensor) -> Tensor:
        """The token at these positions, one a line."""
        batch = lines.settings
        if batch.adjusts:
            logits_BW = self.penalties.apply(logits_BW, lines.req_slots_B, None)
        for row, line in enumerate(lines.grammar_req_slots):
            if line in self._grammars:
                logits_BW = _mask_rows(logits_BW, [row], self._allowed(line, [0], [0], [True]))
        coins_B = None if batch.all_greedy else position_uniforms(self.seeds_R[lines.req_slots_B], positions_B)
        return choose_tokens(logits_BW, batch, torch.arange(len(lines.req_slots_B), device=self.device), coins_B)

    def next_BM(
        self, logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, lines: SamplerBatch, lengths_B: Tensor
    ) -> Tensor:
        """The token that follows each node; 0 where a node got no row of the forward."""
        shape = num_requests, num_nodes = tree.tokens_BM.shape
        batch = lines.settings
        if batch.all_greedy and not batch.adjusts and not lines.grammar_req_slots:
            ids_T = choose_tokens(logits_TW, batch, lengths_B, None)
        else:
            every_T = torch.arange(num_requests * num_nodes, device=self.device) if rows_T is None else rows_T
            of_T = every_T // num_nodes
            if batch.adjusts:
                logits_TW = self.penalties.apply(logits_TW, lines.req_slots_B[of_T], NodePaths.from_tree(tree, rows_T))
            logits_TW = self._apply_grammars(logits_TW, tree, rows_T, lines.grammar_req_slots)
            positions_T = (lengths_B[:, None] + 1 + tree.depths_BM).view(-1)[every_T]
            coins_T = (
                None if batch.all_greedy else position_uniforms(self.seeds_R[lines.req_slots_B[of_T]], positions_T)
            )
            ids_T = choose_tokens(logits_TW, batch, of_T, coins_T)
        if rows_T is None:
            return ids_T.view(shape)
        return ids_T.new_zeros(num_requests * num_nodes).index_copy_(0, rows_T, ids_T).view(shape)

    def accept(self, lines: SamplerBatch, accepted: AcceptedPath) -> None:
        """What was accepted is part of the answers."""
        self.penalties.update(lines.req_slots_B, accepted.tokens_BS, accepted.lengths_B)
        for b, line in enumerate(lines.grammar_req_slots):
            state = self._grammars.get(line)
            if state is not None:
                # A run may reach beyond the end of its answer, and a round may follow it: the host cuts both.
                for token in accepted.tokens_BS[b, : int(accepted.lengths_B[b])].tolist():
                    if not state.is_finished and line not in self.broken_req_slots:
                        state.advance([token])

    def _allowed(self, line: int, tokens: list[int], parents: list[int], valid: list[bool]) -> Tensor:
        """What the grammar of this line allows after each node; everything, once the library has given up on it."""
        if line not in self.broken_req_slots:
            try:
                return self._grammars[line].allow(tokens, parents, valid)
            except InputError:
                self.broken_req_slots.add(line)
        return torch.ones(len(tokens), self.penalties.vocab_size, dtype=torch.bool)

    def _apply_grammars(self, logits_TW: Tensor, tree: Tree, rows_T: Tensor | None, numbers: Sequence[int]) -> Tensor:
        """Without what a request's grammar forbids after each node. Brings trees to the host where there is one."""
        num_nodes = tree.tokens_BM.shape[1]
        rows = None if rows_T is None else rows_T.tolist()
        for b, line in enumerate(numbers):
            state = self._grammars.get(line)
            if state is None:
                continue
            tokens, parents, valid = (part[b].tolist() for part in (tree.tokens_BM, tree.parents_BM, tree.valid_BM))
            allowed_MW = self._allowed(line, tokens, parents, valid)
            own = range(b * num_nodes, (b + 1) * num_nodes)
            places = list(own) if rows is None else [t for t, row in enumerate(rows) if row in own]
            nodes = [place % num_nodes for place in places] if rows is None else [rows[t] % num_nodes for t in places]
            logits_TW = _mask_rows(logits_TW, places, allowed_MW[nodes])
        return logits_TW


def _mask_rows(logits_TW: Tensor, rows: Sequence[int], allowed_XW: Tensor) -> Tensor:
    """A copy whose named rows keep only what is allowed."""
    logits_TW = logits_TW.float().clone()
    index_X = torch.tensor(rows, device=logits_TW.device)
    logits_TW[index_X] = logits_TW[index_X].masked_fill(~allowed_XW.to(logits_TW.device), -torch.inf)
    return logits_TW
