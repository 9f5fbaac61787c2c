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
from eyas.formats.reference_reader import Consumer
from eyas.model.attention import DenseAttend
from eyas.model.submodules import find_layers
from eyas.model.target import Target

STEPS = 5
TOLERANCE = 1e-4
"""Of the largest logit: float32 sums in another order differ by some 1e-6 of it."""
MOST_TOKENS = 48
ROUND_2 = 6  # rows that the second round reads at once


@dataclass(frozen=True)
class Compared:
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
class Text:
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
    def read(target: Target, ids: Sequence[int]) -> "Text":
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
            out = target.forward(ids_1T, positions_1T, DenseAttend(), want_aux=True)
        finally:
            for hook in hooks:
                hook.remove()
        assert out.aux_BTL is not None, "asked for"
        states = [caught[i][0].to("cpu", torch.float32) for i in range(len(layers) + 1)]
        embeds_TD = target.embed(ids_1T)[0].to("cpu", torch.float32)
        return Text(ids_1T[0].cpu(), embeds_TD, states, out.aux_BTL[0].to("cpu", torch.float32))


@torch.no_grad()
def compare(directory: Path, engine: str, stored: StoredHead, target: Target, text: Text) -> Compared:
    """stored: the head in float32. The largest difference of each step."""
    theirs = Consumer(directory, engine, target.facts.num_layers)
    ours = _Ours(stored)
    states = [text.states_TD[i] for i in theirs.layers]
    steps, largest, same, known = [0.0] * (STEPS + 1), 0.0, True, 0
    middle = len(text.ids_T) - 1 - ROUND_2
    for until in (middle, len(text.ids_T) - 1):
        rows, behind = slice(known, until), slice(known + 1, until + 1)
        hidden = (stored.head.fuse(text.aux_TL[None, rows])[0], theirs.fuse([state[rows] for state in states]))
        embeds = (text.embeds_TD[behind], text.embeds_TD[behind])
        start = known
        for step in range(STEPS + 1):
            (our_TV, our_TD), (their_TV, their_TD) = (
                side.read(embeds_TD, hidden_TD, start)
                for side, embeds_TD, hidden_TD in zip((ours, theirs), embeds, hidden, strict=True)
            )
            steps[step] = max(steps[step], (our_TV - their_TV).abs().max().item())
            largest = max(largest, our_TV.abs().max().item())
            tokens = (int(stored.vocab.to_target(our_TV[-1].argmax())), int(theirs.hot_V[their_TV[-1].argmax()]))
            same = same and tokens[0] == tokens[1]
            start += our_TV.shape[0]
            hidden = (our_TD[-1:], their_TD[-1:])
            embeds = tuple(_embed(target, token) for token in tokens)
        ours.cut(until)
        theirs.cut(until)
        known = until
    return Compared(list(theirs.layers), largest, steps, same)


class _Ours:
    """`model.head` behind the same two calls."""

    def __init__(self, stored: StoredHead) -> None:
        self.head, self.attend = stored.head, DenseAttend()

    def read(self, embeds_TD: Tensor, hidden_TD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        positions_1T = torch.arange(start, start + embeds_TD.shape[0])[None]
        hidden_1TD, logits_1TV = self.head.guess(embeds_TD[None], hidden_TD[None], positions_1T, self.attend)
        return logits_1TV[0], hidden_1TD[0]

    def cut(self, length: int) -> None:
        k_BGTH, v_BGTH = self.attend.kept[0]
        self.attend.kept[0] = (k_BGTH[:, :, :length], v_BGTH[:, :, :length])


def _embed(target: Target, token: int) -> Tensor:
    ids_1 = torch.tensor([token], device=target.embedding.weight.device)
    return target.embed(ids_1).to("cpu", torch.float32)
