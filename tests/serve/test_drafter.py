"""The drafter's keys, positions and hidden states against a pass of the head over the whole text with DenseAttend.

B slots, T rows, K frontier nodes, M tree nodes, V draft vocabulary.
"""

import dataclasses
from dataclasses import dataclass, field

import pytest
import torch
from tests.serve.small import CONTEXT, ReplayDrafter, Spoken, replay_engine
from torch import Tensor

from eyas.model.attention import DenseAttend
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.serve.drafter import Drafter
from eyas.serve.engine import Draft, Engine
from eyas.tree.shape import TreeShape, chain
from eyas.tree.tree import Advance, Frontier, Grower, ToTarget, Tree

SHAPES = [chain(4), TreeShape(4, 3, 10)]
IDS = ["chain", "tree"]


@dataclass
class Scratch:
    """The head over one text by plain growing tensors; `out_D` is its output at the last row."""

    head: Head
    target: Target
    text: list[int]
    attend: DenseAttend = field(default_factory=DenseAttend)

    def read(self) -> Tensor:
        """Rows 0..m - 1 of a text that ends with its root x_m, features from one plain forward of the target."""
        ids_1T = torch.tensor([self.text])
        positions_1T = torch.arange(len(self.text) - 1)[None]
        out = self.target.forward(ids_1T[:, :-1], positions_1T, DenseAttend(), want_aux=True)
        assert out.aux_BTL is not None
        embeds_1TD = self.target.embed(ids_1T[:, 1:])
        return self.head.step(embeds_1TD, self.head.fuse(out.aux_BTL), positions_1T, self.attend)[0, -1]

    def walk(self, path: list[int]) -> Tensor:
        """The head's output after drafting these tokens one by one behind the root."""
        out_D = self.read()
        for level, token in enumerate(path):
            embeds_11D = self.target.embed(torch.tensor([[token]]))
            positions_11 = torch.tensor([[len(self.text) - 1 + level]])
            out_D = self.head.step(embeds_11D, self.head.feedback(out_D)[None, None], positions_11, self.attend)[0, 0]
        return out_D


class SpyGrower(Grower):
    """Keeps what every level of the last tree was asked and answered."""

    def grow(self, root_B: Tensor, logits_BV: Tensor, advance: Advance, to_target: ToTarget) -> Tree:
        self.levels: list[tuple[Frontier, Tensor]] = []

        def spied(frontier: Frontier) -> Tensor:
            logits_BKV = advance(frontier)
            self.levels.append((frontier, logits_BKV.clone()))
            return logits_BKV

        return super().grow(root_B, logits_BV, spied, to_target)


def text_so_far(engine: Engine, slot: int) -> list[int]:
    answer = engine.running[slot]
    return [*answer.request.prompt_ids, *answer.token_ids]


def assert_left_behind(engine: Engine, drafter: Drafter) -> None:
    """What the last prefill or extend left in every slot."""
    for slot in range(len(engine.running)):
        out_D = Scratch(drafter.head, engine.target, text_so_far(engine, slot)).read()
        assert_same(drafter.logits_BV[slot], drafter.head.logits(out_D))
        assert_same(drafter.hidden_BD[slot], drafter.head.feedback(out_D))


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """To 1e-5 of the largest entry: the features come from tree forwards here, from one plain forward there."""
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def with_norm_output(draft: Draft) -> Draft:
    """The same weights with the normed hidden state fed back (EAGLE 3.1)."""
    head = Head(dataclasses.replace(draft.head.config, norm_output=True)).to_empty(device="cpu")
    head.load_state_dict(draft.head.state_dict())
    return dataclasses.replace(draft, head=head.pack())


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_prefill_and_extend_read_the_text(llama: Spoken, learnt: Draft, shape: TreeShape) -> None:
    engine = replay_engine(llama, shape, 4)
    assert isinstance(engine.drafter, ReplayDrafter)
    engine.drafter = ReplayDrafter(
        dataclasses.replace(learnt, shape=shape), llama.target, 4, engine.drafter.pool.size, llama.texts
    )
    with torch.no_grad():
        for index in (0, 1, 6, 4):
            engine.admit(llama.requests[index])
            assert_left_behind(engine, engine.drafter)
        for _ in range(7):
            engine.round()
            engine.retire()
            assert_left_behind(engine, engine.drafter)
    assert {length for length, _ in engine.drafter.seen} >= {1, 2, 3, 4}
    assert 0 < len(engine.running) < 4, "slots moved"


@pytest.mark.parametrize("norm_output", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_every_node_follows_its_own_path(llama: Spoken, learnt: Draft, shape: TreeShape, norm_output: bool) -> None:
    draft = dataclasses.replace(learnt, shape=shape)
    if norm_output:
        draft = with_norm_output(draft)
    engine = Engine(llama.target, draft, 3, CONTEXT)
    drafter = engine.drafter
    assert drafter is not None
    spy = drafter.grower = SpyGrower(shape, torch.device("cpu"))
    branched = False
    with torch.no_grad():
        for index in (6, 1, 3):
            engine.admit(llama.requests[index])
        for _ in range(3):
            texts = [text_so_far(engine, slot) for slot in range(3)]
            engine.round()
            engine.check()
            for slot, text in enumerate(texts):
                paths: list[list[int]] = [[]]
                for frontier, logits_BKV in spy.levels:
                    tokens = frontier.tokens_BK[slot].tolist()
                    parents_BK = frontier.parents_BK
                    parents = [0] * len(tokens) if parents_BK is None else parents_BK[slot].tolist()
                    branched |= parents not in ([0] * len(tokens), list(range(len(tokens))))
                    paths = [[*paths[parent], token] for parent, token in zip(parents, tokens, strict=True)]
                    for node, path in enumerate(paths):
                        wanted_V = drafter.head.logits(Scratch(drafter.head, engine.target, text).walk(path))
                        assert_same(logits_BKV[slot, node], wanted_V)
    assert len(spy.levels) == shape.depth - 1
    assert branched == (shape.top_k > 1), "the nodes of a level came from different parents"
