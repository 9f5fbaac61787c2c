"""Whether an exported directory, read by somebody else's rules, is the head that was exported.

    text      x0 x1 x2 ... xm | xm+1 ... xT        the target's states of all layers, once
    round 1   rows 0..m-1 from true states, then STEPS drafts, each from the step before
    round 2   the drafts are dropped; the next rows from true states, then STEPS drafts again

Both sides get the same text, the same states and rows of the embedding. The other side (`formats.reference_reader`)
chooses which states it reads by the rule of the engine, names the tokens by its d2t, and computes the rest itself.

T rows, D hidden, L = 3D captured features, V draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.formats.head_dir import StoredHead
from eyas.formats.reference_reader import ReferenceHead
from eyas.model.attention import DenseAttention
from eyas.model.submodules import find_layers
from eyas.model.target import Target

NUM_DRAFT_STEPS = 5
TOLERANCE = 1e-4
"""Of the largest logit: float32 sums in another order differ by some 1e-6 of it."""
MAX_TOKENS = 48
ROUND_2_ROWS = 6  # rows that the second round reads at once


@dataclass(frozen=True)
class ParityResult:
    """One engine. steps: the largest difference of a logit, by step; round 1 and 2 together. layers: what it read."""

    layers: list[int]
    largest_logit: float
    steps: list[float]
    same_tokens: bool

    @property
    def ok(self) -> bool:
        return self.same_tokens and max(self.steps) <= TOLERANCE * self.largest_logit

    def to_json(self) -> dict[str, Any]:
        """Its entry in parity.json."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class TargetStates:
    """What the target says to the tokens of a text: the input of each layer, caught at the layers themselves.

    states_TD: by entry of hidden_states; the last is what comes out of the last layer, before the norm. aux_TL: as eyas
    captures them.
    """

    ids_T: Tensor
    embeds_TD: Tensor
    states_TD: Sequence[Tensor]
    aux_TL: Tensor

    @staticmethod
    @torch.no_grad()
    def capture(target: Target, ids: Sequence[int]) -> "TargetStates":
        caught: dict[int, Tensor] = {}
        layers = find_layers(target.model)

        def catch(number: int, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            caught[number] = (given[0] if given else named["hidden_states"]).detach()

        def catch_last(given: tuple[Any, ...], out: Any) -> None:
            caught[len(layers)] = (out[0] if isinstance(out, tuple) else out).detach()

        hooks = [
            layer.register_forward_pre_hook(lambda _, a, k, i=i: catch(i, a, k), with_kwargs=True)
            for i, layer in enumerate(layers)
        ]
        hooks.append(layers[-1].register_forward_hook(lambda _, a, out: catch_last(a, out)))
        place = target.embedding.weight.device
        ids_1T = torch.tensor([list(ids)], device=place)
        try:
            positions_1T = torch.arange(len(ids), device=place)[None]
            out = target.forward(ids_1T, positions_1T, DenseAttention(), want_aux=True)
        finally:
            for hook in hooks:
                hook.remove()
        assert out.aux_BTL is not None, "asked for"
        states = [caught[i][0].to("cpu", torch.float32) for i in range(len(layers) + 1)]
        embeds_TD = target.embed(ids_1T)[0].to("cpu", torch.float32)
        return TargetStates(ids_1T[0].cpu(), embeds_TD, states, out.aux_BTL[0].to("cpu", torch.float32))


@torch.no_grad()
def compare_with_reference(
    directory: Path, engine: str, stored: StoredHead, target: Target, states: TargetStates
) -> ParityResult:
    """stored: the head in float32. The largest difference of each step."""
    theirs = ReferenceHead(directory, engine, target.info.num_layers)
    ours = _EyasHead(stored)
    layer_states = [states.states_TD[i] for i in theirs.layers]
    steps, largest, same, known = [0.0] * (NUM_DRAFT_STEPS + 1), 0.0, True, 0
    middle = len(states.ids_T) - 1 - ROUND_2_ROWS
    for until in (middle, len(states.ids_T) - 1):
        rows, behind = slice(known, until), slice(known + 1, until + 1)
        our_hidden_TD = stored.head.fuse_aux(states.aux_TL[None, rows])[0]
        hidden = (our_hidden_TD, theirs.fuse([state_TD[rows] for state_TD in layer_states]))
        embeds = (states.embeds_TD[behind], states.embeds_TD[behind])
        start = known
        for step in range(NUM_DRAFT_STEPS + 1):
            (our_TV, our_TD), (their_TV, their_TD) = (
                side.forward(embeds_TD, hidden_TD, start)
                for side, embeds_TD, hidden_TD in zip((ours, theirs), embeds, hidden, strict=True)
            )
            steps[step] = max(steps[step], (our_TV - their_TV).abs().max().item())
            largest = max(largest, our_TV.abs().max().item())
            tokens = (int(stored.vocab.to_target(our_TV[-1].argmax())), int(theirs.target_ids_V[their_TV[-1].argmax()]))
            same = same and tokens[0] == tokens[1]
            start += our_TV.shape[0]
            hidden = (our_TD[-1:], their_TD[-1:])
            embeds = tuple(_embed(target, token) for token in tokens)
        ours.truncate(until)
        theirs.truncate(until)
        known = until
    return ParityResult(list(theirs.layers), largest, steps, same)


class _EyasHead:
    """`model.head` behind the same two calls."""

    def __init__(self, stored: StoredHead) -> None:
        self.head, self.attend = stored.head, DenseAttention()

    def forward(self, embeds_TD: Tensor, hidden_TD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        positions_1T = torch.arange(start, start + embeds_TD.shape[0])[None]
        hidden_1TD, logits_1TV = self.head.step_with_logits(embeds_TD[None], hidden_TD[None], positions_1T, self.attend)
        return logits_1TV[0], hidden_1TD[0]

    def truncate(self, length: int) -> None:
        k_BGTH, v_BGTH = self.attend.kv_by_layer[0]
        self.attend.kv_by_layer[0] = (k_BGTH[:, :, :length], v_BGTH[:, :, :length])


def _embed(target: Target, token: int) -> Tensor:
    ids_1 = torch.tensor([token], device=target.embedding.weight.device)
    return target.embed(ids_1).to("cpu", torch.float32)
