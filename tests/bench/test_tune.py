"""Predictions for costs written by hand, and the choice of trees to compare and to time."""

from dataclasses import replace

import pytest

from eyas.base.config import build
from eyas.base.errors import UsageError
from eyas.bench.config import TuneConfig
from eyas.bench.tune_predictions import (
    WITHOUT_HEAD,
    Prediction,
    RatedHead,
    RoundCosts,
    arms_to_measure,
    build_tune_results,
    plan_replays,
    select_best,
)
from eyas.cli.recipes import format_results
from eyas.drafters.block import exact_shape
from eyas.evaluation.tree_sweep import TreeAcceptance
from eyas.speculation.round_costs import CostTable
from eyas.tree.acceptance_length import RequestRounds
from eyas.tree.intervals import Interval
from eyas.tree.shape import TreeShape, chain_shape

SMALL = TuneConfig(streams=(1, 4), depth=4, top_k=(1, 2), nodes=(6,))


def test_every_tree_is_timed_or_lies_between_two_that_are() -> None:
    for config in (TuneConfig(), SMALL, TuneConfig(depth=7, top_k=(1,)), TuneConfig(top_k=(4,), nodes=(16,))):
        for max_depth in (None, 5):
            groups = config.shape_groups(max_depth)
            arms = arms_to_measure([[], groups])
            assert [arm for _, arm in arms[:3]] == list(WITHOUT_HEAD)
            measured = [arm.shape for head, arm in arms[3:] if head == 1 and arm.shape is not None]
            assert len(measured) == len(set(measured)) == len(arms) - 3
            for shape in [shape for shapes in groups for shape in shapes]:
                assert shape.nodes <= shape.candidates + 1
                assert shape.depth <= (max_depth or config.depth)
                if shape.top_k == 1:
                    assert shape.nodes == shape.depth + 1
                elif max_depth is not None:
                    assert shape == exact_shape(shape)
                depths = [
                    one.depth
                    for one in measured
                    if one.top_k == shape.top_k and (one.nodes == shape.nodes or shape.top_k == 1)
                ]
                assert min(depths) <= shape.depth <= max(depths)
    names = [arm.name for _, arm in arms_to_measure([SMALL.shape_groups()])]
    assert names == ["off", "copy", "copy", "1,1,2", "2,1,3", "4,1,5", "2,2,6", "4,2,6"]


def test_a_block_head_has_one_tree_for_each_depth_and_number_of_nodes() -> None:
    chains, trees = TuneConfig(depth=3, top_k=(1, 2, 8), nodes=(16, 8)).shape_groups(2)
    assert chains == [chain_shape(1), chain_shape(2)]
    assert trees == [TreeShape(1, 7, 8), TreeShape(1, 15, 16), TreeShape(2, 7, 8), TreeShape(2, 15, 16)]
    assert TuneConfig(top_k=(1,)).shape_groups(2) == [chains]


MS = {  # seconds of rounds with 1 and 4 requests, in milliseconds
    "off": (10, 16),
    "copy 1": (11, 20),
    "copy 16": (14, 50),
    "1,1,2": (12, 24),
    "2,1,3": (14, 32),
    "4,1,5": (18, 48),
    "2,2,6": (15, 60),
    "4,2,6": (21, 90),
}
BLOCK_MS = {"1,1,2": (14, 20), "2,1,3": (14, 24), "1,5,6": (15, 36), "2,5,6": (16, 40)}


def costs(*blocks: dict[str, tuple[int, int]]) -> RoundCosts:
    """Returns costs of rounds with 100 tokens of context, for 1 and 4 requests; a further token costs 0.01 ms."""
    arms = arms_to_measure([SMALL.shape_groups(), *(SMALL.shape_groups(2) for _ in blocks)])
    milliseconds = [*MS.values(), *(value for block in blocks for value in block.values())]
    assert [arm.name for _, arm in arms[3:]] == [name for some in ({**MS}, *blocks) for name in some][3:]
    rows = tuple(tuple(value / 1000 for value in pair) for pair in milliseconds)
    return RoundCosts(CostTable(tuple(arm.name for _, arm in arms), (1, 4), 100, rows, (1e-5,) * len(arms)), arms)


def test_seconds_between_depths_are_interpolated() -> None:
    assert costs().seconds(None, 1, 100) == pytest.approx(0.010)
    assert costs().seconds(chain_shape(3), 1, 100) == pytest.approx(0.016)
    assert costs().seconds(chain_shape(3), 4, 100) == pytest.approx(0.040)
    assert costs().seconds(TreeShape(3, 2, 6), 1, 100) == pytest.approx(0.018)
    assert costs().seconds(TreeShape(3, 2, 6), 1, 300) == pytest.approx(0.020)
    assert costs().seconds(None, 4, 300) == pytest.approx(0.016 + 4 * 0.002)
    both = costs(BLOCK_MS)
    assert both.seconds(chain_shape(2), 1, 100, head=1) == both.seconds(chain_shape(2), 1, 100) == pytest.approx(0.014)
    assert both.seconds(TreeShape(2, 5, 6), 4, 100, head=1) == pytest.approx(0.040)


def test_seconds_of_copies_grow_with_their_number_and_rows() -> None:
    assert costs().copy_seconds(1, 100, 1, 16) == pytest.approx(0.004), "as measured"
    assert costs().copy_seconds(4, 100, 1, 16) == pytest.approx(0.034)
    assert costs().copy_seconds(1, 100, 1, 1) == costs().copy_seconds(1, 100, 1, 0) == pytest.approx(0.001)
    assert costs().copy_seconds(4, 100, 0.5, 0.5 + 7.5) == pytest.approx(0.002 + 0.015)
    assert costs().copy_seconds(1, 100, 0, 0) == 0


LENGTHS = {chain_shape(1): 1.6, chain_shape(2): 2.0, chain_shape(3): 2.2, chain_shape(4): 2.3}
LENGTHS |= {TreeShape(2, 2, 6): 2.4, TreeShape(3, 2, 6): 3.0, TreeShape(4, 2, 6): 3.1}
MACHINE = {"dtype": "float32", "machine": {"threads": 1}, "head": "HEAD"}


def rate(lengths: dict[TreeShape, float], directory: str = "HEAD", kind: str = "eagle3") -> RatedHead:
    return RatedHead(
        directory, kind, [TreeAcceptance(shape, one, Interval(one, one)) for shape, one in lengths.items()]
    )


def test_the_best_tree_by_streams() -> None:
    told = build_tune_results(SMALL, [rate(LENGTHS)], [], costs(), 100)
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
    poor = build_tune_results(SMALL, [rate(dict.fromkeys(LENGTHS, 1.05))], [], costs(), 100)
    assert [(point["best"]["tree"], point["answer"]["tree"]) for point in poor["streams"]] == [(None, None)] * 2
    said = format_results(told | MACHINE, "tune")
    assert "3, 2, 6" in said
    assert "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6" in said
    assert '"num_speculative_tokens": 2}' in said
    assert "plain decoding" in format_results(poor | MACHINE, "tune")


def test_the_answer_is_the_fastest_draft_of_all_heads_and_of_copies() -> None:
    """A block head that accepts less than EAGLE-3 wins at four streams, where its rounds are cheaper."""
    heads = [rate(LENGTHS), rate({chain_shape(2): 1.9, TreeShape(2, 5, 6): 2.1}, "BLOCK", "block")]
    both = costs(BLOCK_MS)
    told = build_tune_results(SMALL, heads, [], both, 100)
    one, four = (point["answer"] for point in told["streams"])
    assert (one["head"], one["tree"]["depth"], one["copies"]) == ("HEAD", 3, False)
    assert (four["head"], four["tree"]["depth"], four["tree"]["top_k"]) == ("BLOCK", 2, 1)
    assert four["tps"] == pytest.approx(4 * 1.9 / 0.024)
    assert [point["best"]["head"] for point in told["streams"]] == ["HEAD", "HEAD"], "best is of the run's own head"
    assert [(head["head"], head["kind"], len(head["trees"])) for head in told["heads"]] == [
        ("HEAD", "eagle3", 7),
        ("BLOCK", "block", 2),
    ]
    # Copies are used where they are expected to be faster than plain decoding or the best tree, by 2 %.
    replays = plan_replays(SMALL, heads, both, 100)
    assert [(one.streams, one.tree, one.head) for one in replays] == [
        (1, None, 0),
        (1, TreeShape(3, 2, 6), 0),
        (1, chain_shape(2), 1),
        (4, None, 0),
        (4, chain_shape(1), 0),
        (4, chain_shape(2), 1),
    ]
    least = [1.02 * 14 / 10, 1.02 * 3.0 * 22 / 18, 1.02 * 1.9 * 18 / 14, 1.02 * 50 / 16]
    assert [one.least_tokens for one in replays[:4]] == pytest.approx(least)
    # Each round copies and accepts 6 tokens. Alone, a copy has 8 rows: at one stream 10 + 1 + 7 / 15 * 3 ms. Beside the
    # block head's chain it has 3 more rows than the chain: at four streams 24 + 4 + 2 / 15 * 30 ms.
    for replay in replays:
        replay.rounds.append(RequestRounds((6,) * 10, (5,) * 10))
        replay.num_rounds, replay.num_copies = 10, 10
        replay.num_rows = 80 if replay.tree is None else 30
    told = build_tune_results(SMALL, heads, replays, both, 100)
    one, four = (point["answer"] for point in told["streams"])
    assert (one["tree"], one["head"], one["copies"]) == (None, None, True)
    assert one["tps"] == pytest.approx(6 / 0.0124)
    assert (four["tree"]["depth"], four["head"], four["copies"]) == (1, "HEAD", True), "as fast, and smaller"
    assert four["tps"] == pytest.approx(24 / 0.032)
    assert len(told["copies"]) == 6
    beside = told["copies"][1]
    assert (beside["n"], beside["tree"]["depth"], beside["tps"]) == (1, 3, pytest.approx(6 / (0.018 + 0.001 + 0.0004)))
    assert told["trees"] == told["heads"][0]["trees"]
    said = format_results(told | MACHINE, "tune")
    assert "copies alone" in said
    assert "SGLang" in said
    said = format_results(told | MACHINE | {"head": "BLOCK", "slots": 2}, "tune")
    assert "1, 1, 2 + copies" in said
    assert "--speculative-algorithm DSPARK" in said


def test_among_equal_trees_the_smaller_wins() -> None:
    shapes = [TreeShape(6, 4, 32), TreeShape(4, 4, 16), TreeShape(3, 4, 16), TreeShape(2, 4, 8)]
    some = [Prediction(shape, 2.0, tps, 1.0) for shape, tps in zip(shapes, (100.0, 99.5, 99.2, 98.0), strict=True)]
    assert select_best(some).tree == TreeShape(3, 4, 16)
    copied = replace(some[2], copies=True)
    assert select_best([copied, *some]) == some[2], "copies that bring nothing"
    alone = Prediction(None, 2.0, 99.1, 1.0, copies=True)
    assert select_best([*some, alone]) == alone
    assert select_best([*some, alone, Prediction(None, 1.0, 99.05, 1.0)]).copies is False, "plain decoding is simplest"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"heads": ("A", "A")}, "heads"),
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
