"""A block head goes through `eyas eval`, the tree sweep of `eyas tune` and `eyas export` as an EAGLE-3 head does."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.train.test_block_loss import CONFIG

from eyas import export
from eyas.bench.config import TuneConfig
from eyas.evaluation.evaluate import EvalConfig, EvalInputs, run
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import replay_rows
from eyas.evaluation.tree_sweep import count_rounds
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.train import train
from eyas.tree.shape import TreeShape


@pytest.fixture(scope="module")
def head(features: Path, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("block") / "head"
    train.run(CONFIG, features, target, directory, progress=False)
    return directory


def test_eval_measures_each_slot_and_the_arms_that_the_block_can_draft(
    head: Path, features: Path, target: Target, tmp_path: Path
) -> None:
    run(EvalConfig(depth=6, top_k=3, nodes=8), EvalInputs(head, features), target, tmp_path, progress=False)
    found = json.loads((tmp_path / "acceptance.json").read_text())
    assert all(len(entry["by_depth"]) <= 3 for entry in found["tasks"].values())
    assert 1 <= found["all"]["acceptance_length"] <= 4
    assert set(found["arms"]) == {"chain3", "tree8", "tree16", "tree32"}
    assert "draft_vocab" not in found


def test_one_drafting_rates_every_exact_tree(head: Path, features: Path, target: Target) -> None:
    """As the drafter of serving drafts each of them, by the shape of an arm."""
    stored, rows = read_head(head), list(Features(features).rows(Features(features).indices("held_out")))
    build = partial(build_head_drafter, stored.head, stored.vocab, target, rows=rows)
    groups = TuneConfig(depth=8, top_k=(1, 4), nodes=(4, 6, 9, 24)).shape_groups(stored.config.max_depth)
    assert [len(shapes) for shapes in groups] == [3, 11]
    counts = set()
    with torch.no_grad():
        for shapes in groups:
            found = count_rounds(rows, shapes, partial(build, is_exact=False), batch_tokens=500)
            for x, shape in enumerate(shapes):
                arm = shape if shape.top_k == 1 else replace(shape, top_k=2)
                walked = [len(text.rounds.accepted) for text in replay_rows(rows, build(arm))]
                assert found[:, x].tolist() == walked, shape
                counts.add(sum(walked))
    assert len(counts) > 2, "the trees hardly differ: the test shows little"


def test_export_names_what_no_engine_loads_and_finishes(
    head: Path, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    inputs = export.ExportInputs(head, absent, absent, absent, TreeShape(3, 2, 6), is_trained_here=False)
    export.run(inputs, target, tmp_path / "export")
    parity = json.loads((tmp_path / "export" / "parity.json").read_text())
    assert set(parity["left_out"]) == {"sglang", "vllm", "vllm-speculators"}
    assert parity["engines"] == {}
    assert "it is a block head" in capsys.readouterr().err
    assert not (tmp_path / "export" / "sglang").exists()
