"""A drafter that is compared, before every tree, with one plain pass of the head over the whole text.

B requests, T rows, D hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tests.engine.small import CONTEXT, ReplayDrafter, Spoken, put_drafter
from torch import Tensor

from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.model.attention import DenseAttention
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.tree.shape import TreeShape
from eyas.tree.tree import Tree


@dataclass
class Scratch:
    """The head over one text by plain growing tensors; `out_D` is its output at the last row."""

    head: Head
    target: Target
    text: list[int]
    attend: DenseAttention = field(default_factory=DenseAttention)

    def read(self) -> Tensor:
        """Rows 0..m - 1 of a text that ends with its root x_m, features from one plain forward of the target."""
        ids_1T = torch.tensor([self.text])
        positions_1T = torch.arange(len(self.text) - 1)[None]
        out = self.target.forward(ids_1T[:, :-1], positions_1T, DenseAttention(), want_aux=True)
        assert out.aux_BTL is not None
        embeds_1TD = self.target.embed(ids_1T[:, 1:])
        return self.head.step(embeds_1TD, self.head.fuse_aux(out.aux_BTL), positions_1T, self.attend)[0, -1]

    def walk(self, path: list[int]) -> Tensor:
        """The head's output after drafting these tokens one by one behind the root."""
        out_D = self.read()
        for level, token in enumerate(path):
            embeds_11D = self.target.embed(torch.tensor([[token]]))
            positions_11 = torch.tensor([[len(self.text) - 1 + level]])
            out_D = self.head.step(embeds_11D, self.head.next_hidden(out_D)[None, None], positions_11, self.attend)[
                0, 0
            ]
        return out_D


class Watched(ReplayDrafter):
    """Before every tree: what `read` or `extend` left is what one plain pass over the text leaves."""

    left: int = 0
    lags: set[int]

    def draft(self, req_slots_B: Tensor, lengths_B: Tensor, roots_B: Tensor, shape: TreeShape) -> Tree:
        future_map = self.future_map
        for line, length in zip(req_slots_B.tolist(), lengths_B.tolist(), strict=True):
            text = future_map.tokens_RC[line, : length + 1].tolist()
            out_D = Scratch(self.head, self.target, text).read()
            assert_same(self.state.logits_RV[line], self.head.logits(out_D))
            assert_same(self.state.hidden_RD[line], self.head.next_hidden(out_D))
            self.left += 1
        return super().draft(req_slots_B, lengths_B, roots_B, shape)

    def read(self, req_slots: Sequence[int], draft_lags: Sequence[int]) -> None:
        self.lags |= set(draft_lags)
        super().read(req_slots, draft_lags)


def watched_engine(
    spoken: Spoken, draft: Eagle3Spec, slots: int, context: int = CONTEXT, memory_tokens: int | None = None
) -> tuple[Engine, Watched]:
    """An engine whose drafter knows the answers, and is watched."""
    engine = Engine(spoken.target, [draft], slots, context, memory_tokens=memory_tokens)
    drafter = put_drafter(engine, draft, Watched)
    assert isinstance(drafter, Watched)
    drafter.texts, drafter.lags = spoken.texts, set()
    return engine, drafter


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """To 3e-5 of the largest entry: the features come from tree forwards here, from one plain forward there."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-5 * float(wanted.abs().max()))
