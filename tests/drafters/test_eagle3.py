"""The drafter's keys, positions and hidden states against a pass of the head over the whole text with DenseAttention.

B requests, T rows, D hidden, K frontier nodes, M tree nodes, V draft vocabulary.
"""

import dataclasses

import pytest
import torch
from tests.drafters.watched import Scratch, assert_same, watched_engine
from tests.engine.small import CONTEXT, Spoken, Turns, check, drive, poison, tokens
from torch import Tensor

from eyas.drafters import drafter as drafter_module
from eyas.drafters.eagle3 import Eagle3Drafter, Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.scheduler import PrefillWork
from eyas.model.head import Head
from eyas.speculation.arms import Arm
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import ExpandFn, Frontier, ToTargetFn, Tree, TreeGrower

SHAPES = [chain_shape(4), TreeShape(4, 3, 10)]
IDS = ["chain", "tree"]


class SpyGrower(TreeGrower):
    """Keeps what every level of the last tree was asked and answered."""

    def grow(self, root_B: Tensor, logits_BV: Tensor, advance: ExpandFn, to_target: ToTargetFn) -> Tree:
        self.levels: list[tuple[Frontier, Tensor]] = []

        def spied(frontier: Frontier) -> Tensor:
            logits_BKV = advance(frontier)
            self.levels.append((frontier, logits_BKV.clone()))
            return logits_BKV

        return super().grow(root_B, logits_BV, spied, to_target)


def with_norm_output(draft: Eagle3Spec) -> Eagle3Spec:
    """The same weights with the normed hidden state fed back (EAGLE 3.1)."""
    head = Head(dataclasses.replace(draft.head.config, norm_output=True)).to_empty(device="cpu")
    head.load_state_dict(draft.head.state_dict())
    return dataclasses.replace(draft, head=head.pack_projections())


@pytest.mark.parametrize("read_rows", [2048, 13])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_read_and_extend_leave_what_a_plain_pass_leaves(
    llama: Spoken, learnt: Eagle3Spec, shape: TreeShape, read_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts at once and piece by piece, and rounds of every length; lines are used by one request after another."""
    monkeypatch.setattr(drafter_module, "MAX_READ_ROWS", read_rows)
    engine, drafter = watched_engine(llama, dataclasses.replace(learnt, shape=shape), 3)
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert {length for length, _ in drafter.seen} >= {1, 2, 3, 4}
    assert drafter.left > 40
    lengths = {len(request.prompt_ids) for request in llama.requests if request.max_tokens > 1}
    assert drafter.lags == lengths | {0}, "prompts are read when drafts begin, answers by extend"


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_what_was_answered_without_drafts_is_read_later(llama: Spoken, learnt: Eagle3Spec, shape: TreeShape) -> None:
    """Rounds of the target alone, and rounds in which only others draft, leave tokens that the head reads next time."""
    engine, drafter = watched_engine(llama, dataclasses.replace(learnt, shape=shape), 3)
    engine.policies[0] = Turns(
        [Arm("on", shape), Arm("off", None), Arm("on", shape), Arm("off", None), Arm("off", None)]
    )
    assert tokens(drive(engine, llama.requests)) == llama.answers
    assert drafter.left > 20
    assert {1, 2, 3} <= drafter.lags, "after rounds with drafts, after one without, after several"


@pytest.mark.parametrize("norm_output", [False, True], ids=["raw", "normed"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_every_node_follows_its_own_path(
    llama: Spoken, learnt: Eagle3Spec, shape: TreeShape, norm_output: bool
) -> None:
    draft = dataclasses.replace(learnt, shape=shape)
    if norm_output:
        draft = with_norm_output(draft)
    engine = poison(Engine(llama.target, [draft], 3, CONTEXT))
    drafter = engine.runner.drafters[0]
    assert isinstance(drafter, Eagle3Drafter)
    spy = drafter.growers[shape] = SpyGrower(shape, torch.device("cpu"))
    for index in (6, 1, 3):
        engine.add(llama.requests[index])
    branched, num_rounds = False, 0
    while num_rounds < 3:
        texts = [list(one.state.token_ids) for one in engine.scheduler.running]
        step = engine.launch()
        assert step is not None
        engine.process(step)
        check(engine)
        if isinstance(step.work, PrefillWork):
            continue
        num_rounds += 1
        with torch.no_grad():
            for request, text in enumerate(texts):
                branched |= assert_paths(spy, drafter, request, text)
    assert len(spy.levels) == shape.depth - 1
    assert branched == (shape.top_k > 1), "the nodes of a level came from different parents"


def assert_paths(spy: SpyGrower, drafter: Eagle3Drafter, request: int, text: list[int]) -> bool:
    """Every expanded node of a request against a walk down its own path; whether a level came from several parents."""
    branched = False
    paths: list[list[int]] = [[]]
    for frontier, logits_BKV in spy.levels:
        tokens_K = frontier.tokens_BK[request].tolist()
        parents = [0] * len(tokens_K) if frontier.parents_BK is None else frontier.parents_BK[request].tolist()
        branched |= parents not in ([0] * len(tokens_K), list(range(len(tokens_K))))
        paths = [[*paths[parent], token] for parent, token in zip(parents, tokens_K, strict=True)]
        for node, path in enumerate(paths):
            wanted_V = drafter.head.logits(Scratch(drafter.head, drafter.target, text).walk(path))
            assert_same(logits_BKV[request, node], wanted_V)
    return branched
