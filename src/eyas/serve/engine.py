"""The engine: target, head and their memory; a `round` is draft -> verify -> extend for every running request.

B running requests (the first B slots), T rows, D hidden, L = 3D, M tree nodes, S path slots, V / W draft / target
vocabulary.

    relay (by slot)      round t                                            relay
    root, logits, hidden -> draft: tree of M nodes -> verify: target forward -> accept -> extend -> root, logits, hidden

Without a drafter a round is a verify of the root alone: the baseline, on the same runner.
"""

import time
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from eyas.base.errors import InputError
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.serve.drafter import Drafter
from eyas.serve.kvpool import KVPool, PoolAttend
from eyas.serve.request import Answer, Request
from eyas.tree.sampling import distribution, draw
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree
from eyas.tree.verify import Accepted, stop_has_children, verify_greedy_ids, verify_sampling

Item = TypeVar("Item")


@dataclass(frozen=True)
class Draft:
    """What speculation needs beside the target."""

    head: Head
    vocab: DraftVocab
    shape: TreeShape


@dataclass
class RoundTimes:
    """Where the time of the rounds went, in seconds, summed over `rounds`."""

    rounds: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    extend_s: float = 0.0
    other_s: float = 0.0


class Engine:
    """Runs up to `slots` requests at once; state lives here and in the pools, one object a loop."""

    def __init__(self, target: Target, draft: Draft | None, slots: int, context: int) -> None:
        """context: the most tokens, prompt and answer together, that any request will reach."""
        facts = target.facts
        self.target = target
        self.slots = slots
        self.context = min(context, facts.max_positions)
        self.groups = facts.num_heads // facts.num_kv_heads
        weight = next(target.model.parameters())
        margin = 1 if draft is None else max(draft.shape.nodes, draft.shape.slots) + draft.shape.slots
        size = self.context + margin
        self.pool = KVPool(facts.num_layers, slots, facts.num_kv_heads, size, facts.head_dim, weight)
        self.drafter = None
        if draft is not None:
            room = self.context + draft.shape.slots + Drafter.scratch(draft.shape)
            self.drafter = Drafter(draft.head, draft.vocab, target, draft.shape, slots, room)
        self.roots_B = torch.zeros(slots, dtype=torch.int64, device=weight.device)
        self.running: list[Answer] = []
        self.started_s: list[float] = []
        self.generators: list[torch.Generator] = []
        self.times = RoundTimes()

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return len(self.running) < self.slots

    def limit(self, request: Request) -> int:
        """How many tokens the request may get; InputError if it asks for none or there is no room for one."""
        if not request.prompt_ids:
            raise InputError(f"prompt {request.id} without tokens", "at least one", "write something into the prompt")
        if request.max_tokens < 1:
            raise InputError(
                f"prompt {request.id} with max_tokens = {request.max_tokens}", "at least 1", "ask for a token or more"
            )
        room = self.context - len(request.prompt_ids)
        if room < 1:
            raise InputError(
                f"prompt {request.id} of {len(request.prompt_ids)} tokens",
                f"at most {self.context - 1}, so that one token fits into the context of {self.context}",
                "shorten the prompt",
            )
        return min(room, request.max_tokens)

    def admit(self, request: Request) -> Answer:
        """Prefill into a free slot; the answer comes back with its first token."""
        assert self.has_room, "admit needs a free slot"
        self.limit(request)
        started_s, slot = time.perf_counter(), len(self.running)
        ids_1T = torch.tensor([request.prompt_ids], device=self.roots_B.device)
        positions_1T = torch.arange(ids_1T.shape[1], device=ids_1T.device)[None]
        attend = PoolAttend(self.pool, slice(slot, slot + 1), 0, ids_1T.shape[1], None, self.groups)
        with torch.inference_mode():
            out = self.target.forward(ids_1T, positions_1T, attend, want_aux=self.drafter is not None)
            self.pool.lengths[slot] = ids_1T.shape[1]
            generator = torch.Generator().manual_seed(request.seed)
            answer = Answer(request)
            self.running.append(answer)
            self.started_s.append(started_s)
            self.generators.append(generator)
            first = self._next_ids(self.target.logits(out.hidden_BTD[:, -1]), slice(slot, slot + 1))
            self.roots_B[slot] = first[0]
            token = int(first[0])
            if self.drafter is not None:
                assert out.aux_BTL is not None, "the target was asked for its captured layers"
                self.drafter.prefill(slot, ids_1T, token, out.aux_BTL)
        self._append(slot, [token], 0)
        return answer

    def round(self) -> None:
        """One round for all running requests; finished ones stay until `retire`."""
        assert all(answer.finish is None for answer in self.running), "retire before the next round"
        with torch.inference_mode():
            if self.drafter is None:
                self._plain_round()
            else:
                self._draft_round(self.drafter)
        self.times.rounds += 1

    def retire(self) -> list[Answer]:
        """Take the finished requests out; the last running ones move into their slots."""
        finished = []
        for slot in reversed(range(len(self.running))):
            if self.running[slot].finish is None:
                continue
            last = len(self.running) - 1
            finished.append(self.running[slot])
            self.pool.replace(slot, last)
            if self.drafter is not None:
                self.drafter.replace(slot, last)
            self.roots_B[slot] = self.roots_B[last]
            _fill(self.running, slot)
            _fill(self.started_s, slot)
            _fill(self.generators, slot)
        return finished

    def check(self) -> None:
        """Assert what must hold between rounds."""
        self.pool.check()
        held = [len(a.request.prompt_ids) + len(a.token_ids) - 1 for a in self.running if a.finish is None]
        if len(held) == len(self.running):
            assert self.pool.lengths[: len(held)] == held, (self.pool.lengths, held)
        if self.drafter is not None:
            self.drafter.pool.check()
            assert self.drafter.pool.lengths == self.pool.lengths, "head and target hold the same text"

    def _plain_round(self) -> None:
        began_s = time.perf_counter()
        count = len(self.running)
        start, lengths_B1 = self.pool.longest(count), self.pool.lengths_B1(count)
        visible_B1S = None
        if self.pool.is_ragged(count):
            own_B11 = torch.ones_like(lengths_B1, dtype=torch.bool)[:, None]
            visible_B1S = torch.cat((self.pool.prefix_B1P(count), own_B11), dim=2)
        attend = PoolAttend(self.pool, slice(0, count), start, 1, visible_B1S, self.groups)
        out = self.target.forward(self.roots_B[:count, None], lengths_B1, attend)
        next_B = self._next_ids(self.target.logits(out.hidden_BTD[:, 0]), slice(0, count))
        self.pool.commit(count, None, [1] * count, start)
        self.roots_B[:count] = next_B
        tokens = next_B.tolist()
        verified_s = time.perf_counter()
        for slot, token in enumerate(tokens):
            self.running[slot].accepted.append(1)
            self.running[slot].offered.append(0)
            self._append(slot, [token], 0)
        self.times.verify_s += verified_s - began_s
        self.times.other_s += time.perf_counter() - verified_s

    def _draft_round(self, drafter: Drafter) -> None:
        began_s = time.perf_counter()
        count = len(self.running)
        start = self.pool.longest(count)
        tree = drafter.grow(self.roots_B[:count])
        drafted_s = time.perf_counter()
        lengths_B1 = self.pool.lengths_B1(count)
        visible_BMS = tree.visible(lengths_B1[:, 0], start)
        attend = PoolAttend(self.pool, slice(0, count), start, tree.tokens_BM.shape[1], visible_BMS, self.groups)
        out = self.target.forward(tree.tokens_BM, lengths_B1 + tree.depths_BM, attend, want_aux=True)
        accepted = self._verify(tree, self.target.logits(out.hidden_BTD), count)
        refused_B = stop_has_children(tree, accepted)
        # The host reads here, once a round: tokens, lengths and whether the end of the path was refused.
        read_BC = torch.cat((accepted.tokens_BS, accepted.lengths_B[:, None], refused_B[:, None]), dim=1).tolist()
        lengths = [row[-2] for row in read_BC]
        chain_in_place = drafter.shape.top_k == 1
        self.pool.commit(count, None if chain_in_place else accepted, lengths, start)
        verified_s = time.perf_counter()
        assert out.aux_BTL is not None, "the target was asked for its captured layers"
        rows_BSL = accepted.nodes_BS[:, : max(lengths), None].expand(-1, -1, out.aux_BTL.shape[2])
        drafter.extend(accepted, lengths, out.aux_BTL.gather(1, rows_BSL))
        self.roots_B[:count] = accepted.tokens_BS.gather(1, accepted.lengths_B[:, None] - 1)[:, 0]
        extended_s = time.perf_counter()
        for slot, row in enumerate(read_BC):
            kept = self._append(slot, row[: row[-2]], row[-2] - 1)
            self.running[slot].accepted.append(kept)
            self.running[slot].offered.append(kept - 1 + (row[-1] if kept == row[-2] else 0))
        times = self.times
        times.draft_s += drafted_s - began_s
        times.verify_s += verified_s - drafted_s
        times.extend_s += extended_s - verified_s
        times.other_s += time.perf_counter() - extended_s

    def _verify(self, tree: Tree, logits_BMW: Tensor, count: int) -> Accepted:
        samplings = [answer.request.sampling for answer in self.running[:count]]
        if all(sampling.greedy for sampling in samplings):
            return verify_greedy_ids(tree, _argmax(logits_BMW))
        probs_BMW = torch.stack([distribution(logits_BMW[b], s) for b, s in enumerate(samplings)])
        num_nodes = tree.tokens_BM.shape[1]
        coins_BC = torch.stack([torch.rand(num_nodes + 1, generator=g) for g in self.generators[:count]])
        coins_BC = coins_BC.to(logits_BMW.device)
        return verify_sampling(tree, probs_BMW, coins_BC[:, :-1], coins_BC[:, -1])

    def _next_ids(self, logits_BW: Tensor, slots: slice) -> Tensor:
        """The next token of each slot without a tree: argmax, or a draw from the same distribution as in a tree."""
        samplings = [answer.request.sampling for answer in self.running[slots]]
        if all(sampling.greedy for sampling in samplings):
            return _argmax(logits_BW)
        probs_BW = torch.stack([distribution(logits_BW[b], s) for b, s in enumerate(samplings)])
        coins_B = torch.cat([torch.rand(1, generator=generator) for generator in self.generators[slots]])
        return draw(probs_BW, coins_B.to(logits_BW.device))

    def _append(self, slot: int, tokens: list[int], num_drafted: int) -> int:
        """Hand tokens to the answer, cut at a stop token or at its limit; returns how many it took."""
        answer = self.running[slot]
        now_s = time.perf_counter() - self.started_s[slot]
        limit, eos_ids = self.limit(answer.request), self.target.facts.eos_ids
        for index, token in enumerate(tokens):
            answer.token_ids.append(token)
            answer.drafted.append(index < num_drafted)
            answer.time_s.append(now_s)
            if token in eos_ids:
                answer.finish = "stop"
            elif len(answer.token_ids) >= limit:
                answer.finish = "length"
            if answer.finish is not None:
                return index + 1
        return len(tokens)


def _fill(held: list[Item], slot: int) -> None:
    """The last item takes the place of this one."""
    held[slot] = held[-1]
    held.pop()


def _argmax(logits: Tensor) -> Tensor:
    """The greedy token. Widened first: that changes no order, and CPUs reduce bfloat16 several times slower."""
    return logits.float().argmax(dim=-1)
