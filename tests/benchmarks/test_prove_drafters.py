"""The rows of `make prove-drafters` in a small size, and the statistics that they stand on."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import drafter_heads
import pytest
import torch
from drafter_calibration import GradedNodes, brier_gain, calibration_error, chance_error
from drafter_deepspec import NAMES as DEEPSPEC_ROWS
from drafter_deepspec import DeepSpec, measure_deepspec
from drafter_heads import RunData, describe_training, train_heads
from drafter_sampling import PROMPT, RULES, SHAPE, chi_square, make_specs, make_target, measure_sampling
from drafter_words import measure_words
from prove_drafters import main
from prove_engine import outside_forwards
from result_rows import Row
from tests.drafters.blocks import SLOTS, block_spec, every_token, random_block
from tests.engine.small import random_draft
from tests.tiny import tiny_target

from eyas.bench.workload import Prompt
from eyas.engine import model_runner
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, StopCriteria
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import write_head
from eyas.formats.parity import TargetStates, read_matrices
from eyas.formats.reference_reader import ReferenceBlockHead
from eyas.model.attention import DenseAttention
from eyas.model.target import Target
from eyas.speculation.arms import default_arms
from eyas.train.config import TrainConfig
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape

TREE = TreeShape(3, 3, 10)
END = StopCriteria(ignore_eos=True)
LOOP = (5, 9, 5, 9, 5, 9, 5)  # a prompt that prompt lookup continues


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("tiny"), layers=4), torch.float32, (1, 2, 3))


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [Prompt(f"p{i}", (i, *LOOP, i + 40)) for i in range(5)]


def test_the_statistic_finds_both_wrong_rules(tmp_path: Path) -> None:
    rows = list(measure_sampling(tmp_path, 1000, 700))
    assert len(rows) == 2 * (1 + len(RULES))
    assert [row for row in rows if not row.ok] == []
    assert len({row.figure for row in rows if "control" not in row.name}) == 2, "the samples of the two heads differ"


def test_chi_square_by_hand() -> None:
    exact = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    statistic, degrees, p_value = chi_square(torch.tensor([60, 20, 20]), exact)
    assert (statistic, degrees) == (pytest.approx(4.0), 2)
    assert p_value == pytest.approx(math.exp(-2.0)), "of two degrees of freedom"
    rare = torch.tensor([0.95, 0.03, 0.02], dtype=torch.float64)
    assert chi_square(torch.tensor([95, 3, 2]), rare)[1] == 1, "cells that expect few answers are one"


def test_every_drafter_gives_the_words_of_plain_decoding(target: Target, prompts: list[Prompt]) -> None:
    specs: dict[str, Any] = {
        "EAGLE-3": replace(random_draft(target, TREE), arms=default_arms(SLOTS)),
        "block": replace(block_spec(random_block(target), target, TREE), arms=default_arms(SLOTS)),
    }
    rows = list(measure_words(target, specs, prompts, 8, with_auto=False))
    assert len(rows) == 2 * (2 + len(specs))
    assert [row for row in rows if not row.ok or row.figure != len(prompts)] == []
    assert all("acceptance length" in row.note for row in rows[2:])


def test_graded_nodes_are_those_below_accepted_ones(tmp_path: Path) -> None:
    """The sums are those of the engine, and each accepted draft token is one right node."""
    small = make_target(tmp_path)
    for spec in make_specs(small).values():
        nodes, before, engine = GradedNodes(), model_runner.verify, Engine(small, [spec], 2, 40)
        requests = [Request(str(seed), PROMPT, 30, SamplingParams(1.0), seed, END) for seed in range(5)]
        with nodes.watch():
            outputs = list(plain_loop(engine, RequestList(requests)))
        assert model_runner.verify is before
        assert nodes.rounds == sum(len(output.accepted) for output in outputs)
        assert nodes.accepted >= sum(sum(output.accepted) for output in outputs), "also those behind the last one"
        assert sum(float(hits_X.sum()) for hits_X in nodes.hits) == nodes.accepted - nodes.rounds > 0
        assert all(0 < float(prob) <= 1 for probs_X in nodes.probs for prob in probs_X)
        assert nodes.rounds < nodes.promised < nodes.rounds * (SHAPE.depth + 1)


def test_the_time_outside_forwards_is_a_share_of_all_time(
    target: Target, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prove_engine.MAX_TOKENS", 12)
    for spec in (random_draft(target, TREE), block_spec(random_block(target), target, TREE)):
        share = outside_forwards(Engine(target, [spec], 2, 128), spec.head, prompts[:2], 1)
        assert 0 < share < 1
        assert not {"forward", "step"} & (vars(target).keys() | vars(spec.head).keys()), "nothing is timed any more"


def test_chance_makes_an_error_of_its_size() -> None:
    generator = torch.Generator().manual_seed(0)
    probs_X = torch.rand(1000, generator=generator)
    drawn = [calibration_error(probs_X, (torch.rand(1000, generator=generator) < probs_X).float()) for _ in range(200)]
    assert chance_error(probs_X) == pytest.approx(sum(drawn) / len(drawn), rel=0.05)


def test_calibration_of_known_nodes() -> None:
    probs_X = torch.tensor([0.2, 0.9]).repeat_interleave(100)
    hits_X = torch.cat((torch.arange(100) < 20, torch.arange(100) < 80)).float()
    assert calibration_error(probs_X, hits_X) == pytest.approx(0.05, rel=1e-4), "half of the nodes promise 0.1 too much"
    assert calibration_error(torch.full((10,), 1.0), torch.ones(10)) == 0, "the last bin holds 1"
    right, base = 0.2 * 0.8 / 2 + (0.8 * 0.01 + 0.2 * 0.81) / 2, 0.25
    assert brier_gain(probs_X, hits_X) == pytest.approx(1 - right / base)
    assert brier_gain(torch.full((200,), 0.5), hits_X) == pytest.approx(0), "the base rate itself"


class FakeTrainings:
    """Trainings that take 2 seconds of processor time, and 0.5 (EAGLE-3) or 1.5 (block) for each update."""

    def __init__(self) -> None:
        self.now_s, self.updates, self.stop_at = 0.0, [], 0

    def run(self, config: TrainConfig, features: Path, target: object, out: Path, *, progress: bool) -> None:
        self.updates.append(config.updates)
        assert config.updates is not None
        self.now_s += 2 + config.updates * (0.5 if config.drafter == "eagle3" else 1.5)
        if len(self.updates) == self.stop_at:
            raise KeyboardInterrupt
        out.mkdir(parents=True)
        (out / "provenance.json").write_text("{}")


class FakeRun(RunData):
    """A run directory that is never read."""

    def train_config(self, kind: drafter_heads.Kind) -> TrainConfig:
        return TrainConfig(drafter=kind)

    def load_target(self) -> Any:
        return None


def test_both_heads_train_for_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = FakeTrainings()
    trainings.stop_at = 3  # the first training after its two probes
    monkeypatch.setattr(drafter_heads.train, "run", trainings.run)
    monkeypatch.setattr(drafter_heads.time, "process_time", lambda: trainings.now_s)
    run, work = FakeRun(tmp_path, "none"), tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        train_heads(run, work, 92.0)
    heads = train_heads(run, work, 92.0)
    few, many = drafter_heads.PROBES
    assert trainings.updates == [few, many, 180, 180, few, many, 60]
    assert describe_training(heads["block"]) == "60 updates, 92 CPU seconds"
    assert describe_training(heads["eagle3"]) == "180 updates, 184 CPU seconds", "the interrupted part counts"
    assert train_heads(run, work, 92.0) == heads
    assert len(trainings.updates) == 7, "finished heads are not trained again"
    assert not drafter_heads.compare_training("", heads).ok


def test_what_is_not_measured_has_no_figure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["prove_drafters.py", "--only", "sampling"])
    monkeypatch.setattr("prove_drafters.sampling", lambda: iter([Row("sampling", 1.0, "told", True)]))
    assert main() == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["figure"] for row in rows] == [1.0, None]
    assert rows[1]["ok"] is None
    assert rows[1]["note"].startswith("not measured")


def test_without_a_checkout_deepspec_is_not_measured(tmp_path: Path) -> None:
    rows = list(measure_deepspec(None, "absent", tmp_path, [], 8, "here"))
    assert [row.name for row in rows] == [f"here: {name}" for name in DEEPSPEC_ROWS]
    assert all(row.figure is None and row.ok is None and "DEEPSPEC=DIR" in row.note for row in rows)


class SameLayers(DeepSpec):
    """A double for DeepSpec's code that runs the second reader, or lies about a token or a round."""

    lie = ""

    @staticmethod
    def load(target_dir: Path, head_dir: Path) -> DeepSpec:
        target = Target.load(target_dir, torch.float32, (1, 2, 3))
        return SameLayers((target, ReferenceBlockHead(head_dir, "deepspec", read_matrices(target))), SimpleNamespace())

    def draft_block(self, ids: Sequence[int], start: int) -> tuple[torch.Tensor, list[int]]:
        target, reader = self.evaluator
        states = TargetStates.capture(target, ids[:start]).states_TD
        logits, tokens = reader.draft([states[i] for i in reader.layers], ids[start])
        return (logits + 1 if self.lie == "logits" else logits), tokens

    def answer(self, ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Decodes with whole blocks of the second reader, as DeepSpec's evaluator does."""
        target, text, rounds = self.evaluator[0], list(ids), []

        def best(text: list[int]) -> list[int]:
            ids_1T = torch.tensor([text])
            hidden = target.forward(ids_1T, torch.arange(len(text))[None], DenseAttention()).hidden_BTD
            return target.logits(hidden[0]).argmax(-1).tolist()

        text.append(best(text)[-1])
        while len(text) - len(ids) < max_tokens:
            _, tokens = self.draft_block(text, len(text) - 1)
            checked = best([*text, *tokens])[len(text) - 1 :]
            count = next((i for i, (a, b) in enumerate(zip(tokens, checked, strict=False)) if a != b), len(tokens))
            text += [*tokens[:count], checked[count]]
            rounds.append(count + 1 + (self.lie == "rounds"))
        return text[len(ids) :][:max_tokens], rounds


@pytest.mark.parametrize("lie", ["", "logits", "rounds"])
def test_deepspec_rows_compare_logits_and_rounds(
    lie: str, target: Target, prompts: list[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafter_deepspec.DeepSpec", SameLayers)
    monkeypatch.setattr(SameLayers, "lie", lie)
    monkeypatch.setattr(target, "info", replace(target.info, eos_ids=()))
    write_head(tmp_path, random_block(target), every_token(target), HeadMetadata(), torch.float32)
    rows = list(measure_deepspec(tmp_path, str(target.directory), tmp_path, prompts, 12, "here"))
    assert [row.ok for row in rows] == [lie != "logits", lie != "rounds"], rows
