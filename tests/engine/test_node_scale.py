"""The engine learns how often the nodes of its head are accepted, and copies compete with them on that scale."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.engine.small import CONTEXT, Spoken, random_draft, tokens
from tests.engine.test_copies import BESIDE, TREE, build, run

from eyas.engine import model_runner
from eyas.engine.cost_profiler import CostProfiler
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.speculation.arms import Arm
from eyas.tree import node_scale
from eyas.tree.merge import SOURCES
from eyas.tree.node_scale import NodeScale


@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_the_scale_learns_from_rounds_with_copies(llama: Spoken, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "LEARN_ROUNDS", 2)
    monkeypatch.setattr(node_scale, "MIN_NODES", 1)
    seen: list[np.ndarray] = []
    learn = NodeScale.learn

    def watch(scale: NodeScale, counts_SDN2: np.ndarray) -> None:
        seen.append(counts_SDN2)
        learn(scale, counts_SDN2)

    monkeypatch.setattr(NodeScale, "learn", watch)
    engine = build(llama, loop, 2, BESIDE)
    assert engine.copies is not None
    for name, answer in llama.answers.items():
        engine.copies.store("a", f"before {name}", answer)
    found = run(engine, [replace(request, tenant="a") for request in llama.requests], loop)
    assert tokens(found) == llama.answers
    scale = engine.runner.drafters[0].node_scale
    assert scale is not None
    counts = dict(zip(SOURCES, np.sum(seen, axis=(0, 2, 3)).tolist(), strict=True))
    assert all(graded > 0 for source, (graded, _) in counts.items() if source != "both"), "a random head agrees never"
    assert counts["copy"][1] > 0, "the copies are the answers"
    assert not np.array_equal(scale.shares_SDN[0], np.tile(node_scale.IDENTITY_N, (node_scale.MAX_DEPTH, 1)))
    assert scale.errors().keys() >= {"head", "branch", "copy"}


def test_a_head_without_copies_is_graded_too(llama: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each accepted draft token is a graded node. The nodes after the end of an output count, too."""
    monkeypatch.setattr(model_runner, "GRADE_ROUNDS", 1)
    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 1, CONTEXT)
    request = llama.requests[0]
    (output,) = plain_loop(engine, RequestList([request]))
    scale = engine.runner.drafters[0].node_scale
    assert scale is not None
    graded_D, accepted_D = scale.counts_SDN2[0].sum(1).T.tolist()
    drafted = [sum(count > depth for count in output.accepted) for depth in range(1, TREE.depth + 1)]
    assert all(all_ >= own for all_, own in zip(accepted_D, drafted, strict=False))
    assert sum(accepted_D) - sum(drafted) <= TREE.depth, "only the last round has tokens after the end"
    assert graded_D[0] == len(output.accepted) * TREE.top_k, "the root is always accepted"


def test_measured_rounds_teach_nothing(llama: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts are artificial, so their acceptance says nothing."""
    monkeypatch.setattr(model_runner, "GRADE_ROUNDS", 1)
    engine = Engine(llama.target, [random_draft(llama.target, TREE)], 2, CONTEXT)
    scale = engine.runner.drafters[0].node_scale
    assert scale is not None
    counted: list[int] = []
    count = model_runner.count_graded

    def watch(*arguments: Any) -> None:
        count(*arguments)
        counted.append(int(scale.counts_SDN2.sum()))

    monkeypatch.setattr(model_runner, "count_graded", watch)
    CostProfiler(engine).measure_round_s(Arm("tree", TREE), 2, 8)
    assert counted[0] > 0
    assert scale.counts_SDN2.sum() == 0
