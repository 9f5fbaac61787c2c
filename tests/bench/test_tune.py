"""Predictions for costs written by hand, and the choice of trees to compare and to time."""

import pytest

from eyas.base.config import build
from eyas.base.errors import UsageError
from eyas.bench.config import TuneConfig
from eyas.bench.tune import Prediction, RoundCosts, arms_to_measure, build_tune_results, select_best
from eyas.cli.recipes import format_tune_results
from eyas.evaluation.tree_sweep import TreeAcceptance
from eyas.speculation.round_costs import CostTable
from eyas.tree.intervals import Interval
from eyas.tree.shape import TreeShape, chain_shape

SMALL = TuneConfig(streams=(1, 4), depth=4, top_k=(1, 2), nodes=(6,))


def test_every_tree_is_timed_or_lies_between_two_that_are() -> None:
    for config in (TuneConfig(), SMALL, TuneConfig(depth=7, top_k=(1,)), TuneConfig(top_k=(4,), nodes=(16,))):
        measured = [arm.shape for arm in arms_to_measure(config.shapes_by_top_k)]
        assert measured[0] is None
        assert len(set(measured)) == len(measured)
        for shape in [shape for shapes in config.shapes_by_top_k.values() for shape in shapes]:
            assert shape.nodes <= shape.candidates + 1
            if shape.top_k == 1:
                assert shape.nodes == shape.depth + 1
            depths = [
                one.depth
                for one in measured
                if one is not None and one.top_k == shape.top_k and (one.nodes == shape.nodes or shape.top_k == 1)
            ]
            assert min(depths) <= shape.depth <= max(depths)
    assert [arm.name for arm in arms_to_measure(SMALL.shapes_by_top_k)] == [
        "off",
        "1,1,2",
        "2,1,3",
        "4,1,5",
        "2,2,6",
        "4,2,6",
    ]


def costs() -> RoundCosts:
    """Returns costs of rounds with 100 tokens of context, for 1 and 4 requests; a further token costs 0.01 ms."""
    arms = arms_to_measure(SMALL.shapes_by_top_k)
    seconds = {"off": (10, 16), "1,1,2": (12, 24), "2,1,3": (14, 32), "4,1,5": (18, 48), "2,2,6": (15, 60)}
    seconds["4,2,6"] = (21, 90)
    rows = tuple(tuple(value / 1000 for value in seconds[arm.name]) for arm in arms)
    return RoundCosts(CostTable(tuple(arm.name for arm in arms), (1, 4), 100, rows, (1e-5,) * len(arms)), arms)


def test_seconds_between_depths_are_interpolated() -> None:
    assert costs().seconds(None, 1, 100) == pytest.approx(0.010)
    assert costs().seconds(chain_shape(3), 1, 100) == pytest.approx(0.016)
    assert costs().seconds(chain_shape(3), 4, 100) == pytest.approx(0.040)
    assert costs().seconds(TreeShape(3, 2, 6), 1, 100) == pytest.approx(0.018)
    assert costs().seconds(TreeShape(3, 2, 6), 1, 300) == pytest.approx(0.020)
    assert costs().seconds(None, 4, 300) == pytest.approx(0.016 + 4 * 0.002)


def test_the_best_tree_by_streams() -> None:
    lengths = {chain_shape(1): 1.6, chain_shape(2): 2.0, chain_shape(3): 2.2, chain_shape(4): 2.3}
    lengths |= {TreeShape(2, 2, 6): 2.4, TreeShape(3, 2, 6): 3.0, TreeShape(4, 2, 6): 3.1}
    accepted = [TreeAcceptance(shape, length, Interval(length, length)) for shape, length in lengths.items()]
    told = build_tune_results(SMALL, accepted, costs(), 100)
    one, four = told["streams"]
    # One stream: tree of depth 3, 3.0 in 18 ms against 1 in 10; the best chain is that of 2, 2.0 in 14.
    assert one["best"]["tree"] == {"depth": 3, "top_k": 2, "nodes": 6}
    assert (one["off_tps"], one["best"]["tps"]) == (pytest.approx(100), pytest.approx(3.0 / 0.018))
    assert one["best"]["speedup"] == pytest.approx(3.0 / 1.8)
    assert one["best_chain"]["tree"] == {"depth": 2, "top_k": 1, "nodes": 3}
    # Four: chain 1 gives 1.6 * 4 in 24 ms, 1.07 of off's 4 in 16; the tree 2.4 * 4 in 60.
    assert four["best"]["tree"] == four["best_chain"]["tree"] == {"depth": 1, "top_k": 1, "nodes": 2}
    assert four["best"]["speedup"] == pytest.approx(1.6 * 16 / 24)
    assert [set(tree["tps"]) for tree in told["trees"]] == [{"1", "4"}] * 7
    # A head that accepts nothing.
    poor = [TreeAcceptance(shape, 1.05, Interval(1, 1.1)) for shape in lengths]
    assert [point["best"]["tree"] for point in build_tune_results(SMALL, poor, costs(), 100)["streams"]] == [None, None]
    said = format_tune_results(told | {"dtype": "float32", "machine": {"threads": 1}, "head": "HEAD"})
    assert "3, 2, 6" in said
    assert "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6" in said
    assert '"num_speculative_tokens": 2}' in said


def test_among_equal_trees_the_smaller_wins() -> None:
    shapes = [TreeShape(6, 4, 32), TreeShape(4, 4, 16), TreeShape(3, 4, 16), TreeShape(2, 4, 8)]
    some = [Prediction(shape, 2.0, tps, 1.0) for shape, tps in zip(shapes, (100.0, 99.5, 99.2, 98.0), strict=True)]
    assert select_best(some).tree == TreeShape(3, 4, 16)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"streams": ()}, "streams"),
        ({"streams": (0,)}, "streams"),
        ({"nodes": (1,)}, "nodes"),
        ({"top_k": (2, 2)}, "top_k"),
        ({"depth": 0}, "depth"),
        ({"allowance_s": 0.0}, "allowance_s"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": (2,), "nodes": (2,)}, "no tree of depth 8"),
    ],
)
def test_config_rejects(wrong: dict, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build(TuneConfig, wrong, "tune")
