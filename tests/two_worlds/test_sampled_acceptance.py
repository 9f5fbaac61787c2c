"""Acceptance at a temperature: the answers and the rounds of evaluation are those of serving, one by one."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.features.small import LAYERS, write_conversations
from tests.model.families import family_target
from tests.tiny import tiny_target

from eyas.base.errors import UsageError
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.evaluation.evaluate import EvalConfig, EvalInputs, replay_rows, run
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.resample import resample_answers
from eyas.features import capture
from eyas.features.layout import Row
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.train import train as loop
from eyas.tree.sampling import SamplingParams
from eyas.tree.shape import TreeShape

SHAPE = TreeShape(depth=4, top_k=3, nodes=11)
WARM = SamplingParams(0.5)
TOKENS = 30


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target")), torch.float32, layers=LAYERS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    """conversations, features and head of greedy answers."""
    out = tmp_path_factory.mktemp("run")
    write_conversations(out / "conversations", target, 16, TOKENS)
    config = capture.CaptureConfig(dtype="float32", held_out=0.5)
    capture.run(config, out / "conversations", target, out / "features", progress=False)
    training = loop.TrainConfig(steps=3, updates=60, batch_tokens=150, draft_vocab_size=200, learning_rate=1e-2)
    loop.run(training, out / "features", target, out / "head", progress=False)
    return out


def served(engine: Engine, rows: list[Row], seeds: list[int], sampling: SamplingParams) -> list[RequestOutput]:
    """The engine's answers to the prompts of rows of one turn."""
    prompts = [tuple(row.ids_T[: int(row.loss_mask_T.int().argmax())].tolist()) for row in rows]
    requests = [
        Request(str(number), ids, TOKENS, sampling, seed)
        for number, (ids, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    found = {answer.request.id: answer for answer in plain_loop(engine, RequestList(requests))}
    return [found[str(number)] for number in range(len(rows))]


@torch.inference_mode()
def test_answers_drawn_anew_and_their_rounds_are_those_of_serving(target: Target, trained: Path) -> None:
    stored, features = read_head(trained / "head", torch.float32), Features(trained / "features")
    assert isinstance(stored.head, Head)
    rows = list(features.rows(range(16)))
    seeds = list(range(50, 66))
    engine = Engine(target, [Eagle3Spec(stored.head, stored.vocab, SHAPE)], max_running=6, max_context=256)
    wanted = served(engine, rows, seeds, WARM)
    anew = resample_answers(rows, seeds, target, WARM, TOKENS)
    said = [row.ids_T[row.loss_mask_T].tolist() for row in anew]
    assert said == [answer.token_ids for answer in wanted]
    greedy = [row.ids_T[row.loss_mask_T].tolist() for row in rows]
    assert sum(a != b for a, b in zip(said, greedy, strict=True)) > 12, "the temperature changed nothing"
    drafter = HeadDrafter(stored.head, stored.vocab, target.embed, SHAPE, anew)
    assert [text.rounds for text in replay_rows(anew, drafter)] == [answer.rounds for answer in wanted]
    assert max(max(answer.accepted) for answer in wanted) > 1, "nothing was ever accepted"


@torch.inference_mode()
def test_greedy_answers_anew_are_the_rows_that_were_captured(target: Target, trained: Path) -> None:
    """Features and final states too, though capture reads whole texts and this one token at a time."""
    rows = list(Features(trained / "features").rows(range(4)))
    longest = max(int(row.loss_mask_T.sum()) for row in rows)
    for row, anew in zip(rows, resample_answers(rows, [0] * 4, target, SamplingParams(), longest), strict=True):
        count = len(row.ids_T)
        assert torch.equal(anew.ids_T[:count], row.ids_T)
        assert torch.equal(anew.loss_mask_T[:count], row.loss_mask_T)
        torch.testing.assert_close(anew.aux_TL[: count - 1], row.aux_TL[: count - 1], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(anew.hidden_UD[: len(row.hidden_UD)], row.hidden_UD, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_sliding_window_slides_over_what_is_drawn(tmp_path: Path) -> None:
    """Prompts of different length, shorter and longer than the window, against the engine without a head."""
    target = Target.load(family_target(tmp_path / "target", "gemma3_text"), torch.float32, layers=LAYERS)
    rows = []
    for length in (3, 9, 40):
        ids_T, mask_T = torch.randint(0, 200, (length + 1,)), torch.arange(length + 1) == length
        rows.append(Row(str(length), "any", ids_T, mask_T, torch.zeros(length + 1, 1), torch.zeros(1, 1)))
    wanted = served(Engine(target, (), max_running=3, max_context=128), rows, [1, 2, 3], SamplingParams(1.0))
    anew = resample_answers(rows, [1, 2, 3], target, SamplingParams(1.0), TOKENS)
    assert [row.ids_T[row.loss_mask_T].tolist() for row in anew] == [answer.token_ids for answer in wanted]


def test_a_temperature_stands_in_the_file(target: Target, trained: Path, tmp_path: Path) -> None:
    config = EvalConfig(depth=4, top_k=3, nodes=11, max_tokens=20)
    inputs = EvalInputs(trained / "head", trained / "features")
    found = {}
    for temperature in (None, 2.0):
        out = tmp_path / str(temperature)
        run(dataclasses.replace(config, temperature=temperature), inputs, target, out, progress=False)
        found[temperature] = json.loads((out / "acceptance.json").read_text())
        assert found[temperature]["temperature"] == temperature
    cold, hot = (found[temperature]["all"] for temperature in (None, 2.0))
    assert hot["prompts"] == cold["prompts"] == 8
    assert hot["accepted"] <= 8 * 19
    assert hot["acceptance_length"] < cold["acceptance_length"], "hot answers are hard to foresee"
    with pytest.raises(UsageError, match="temperature"):
        EvalConfig(temperature=-1.0)
