"""A block head goes through `eyas eval`, the tree sweep of `eyas tune` and `eyas export` as an EAGLE-3 head does."""

import dataclasses
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.train.test_block_loss import CONFIG

from eyas import export
from eyas.base.errors import InputError
from eyas.bench.config import TuneConfig
from eyas.evaluation.evaluate import EvalConfig, EvalInputs, run
from eyas.evaluation.head_drafter import build_head_drafter
from eyas.evaluation.replay import replay_rows
from eyas.evaluation.tree_sweep import count_rounds
from eyas.features.reader import Features
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import read_head, write_head
from eyas.model.block_head import BlockConfig, BlockHead
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
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
    """The counts equal those of a drafter that drafts each tree alone, with the shape of an arm, as in serving."""
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


def test_export_writes_a_directory_for_each_engine(head: Path, target: Target, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    inputs = export.ExportInputs(head, absent, absent, absent, TreeShape(3, 2, 6), is_trained_here=False)
    stale = tmp_path / "export" / "vllm-speculators" / "config.json"  # of an EAGLE-3 head before
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    export.run(inputs, target, tmp_path / "export")
    parity = json.loads((tmp_path / "export" / "parity.json").read_text())
    assert set(parity["engines"]) == {"sglang", "vllm", "deepspec"}
    assert parity["left_out"] == {}
    assert all(found["ok"] and len(found["steps"]) == 3 for found in parity["engines"].values())
    assert not stale.exists()
    texts = {name: (tmp_path / "export" / name / "README.md").read_text() for name in parity["engines"]}
    assert all('tags: ["dspark", ' in text and "# DSpark draft head for" in text for text in texts.values())
    assert "--speculative-algorithm DSPARK" in texts["sglang"]
    assert "--speculative-num-draft-tokens 4" in texts["sglang"]
    assert '"method": "dspark", "model": "THIS_DIRECTORY", "num_speculative_tokens": 3' in texts["vllm"]
    assert "vLLM 0.25.0" in texts["vllm"]
    assert "--draft_name_or_path THIS_DIRECTORY" in texts["deepspec"]
    assert not [text for text in texts.values() if "eagle" in text.lower()]


def test_export_names_a_target_that_no_engine_drafts_for(
    head: Path, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The DSpark code of the engines adds the correction to logits without a cap."""
    monkeypatch.setattr(target, "logit_softcap", 30.0)
    absent = tmp_path / "absent"
    inputs = export.ExportInputs(head, absent, absent, absent, TreeShape(3, 2, 6), is_trained_here=False)
    export.run(inputs, target, tmp_path / "export")
    parity = json.loads((tmp_path / "export" / "parity.json").read_text())
    assert set(parity["left_out"]) == {"sglang", "vllm", "deepspec"}
    assert parity["engines"] == {}
    assert "caps its logits" in capsys.readouterr().err
    assert not (tmp_path / "export" / "sglang").exists()


def test_features_of_other_layers_are_named(head: Path, features: Path, target: Target, tmp_path: Path) -> None:
    """A head of five layers is served, but features have three."""
    config = dataclasses.replace(read_head(head).config, aux_layer_ids=(0, 1, 2))
    every = DraftVocab.from_chosen(torch.ones(config.vocab_size, dtype=torch.bool))
    assert isinstance(config, BlockConfig)
    write_head(tmp_path / "head", BlockHead.init(config, 0), every, HeadMetadata(), torch.float32)
    inputs = EvalInputs(tmp_path / "head", features)
    with pytest.raises(InputError, match=r"reads layers \[0, 1, 2\], but the run captures layers") as error:
        run(EvalConfig(depth=2, top_k=1, nodes=3), inputs, target, tmp_path / "eval", progress=False)
    assert "capture.aux_layer_ids=[0, 1, 2]" in error.value.fix
