import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.features.small import LAYERS, contents
from tests.tiny import tiny_target

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import StageInputs, finish_stage
from eyas.chat.conversation import MODE_TAG, Conversation, Message, Turn
from eyas.evaluation.evaluate import EvalConfig, EvalInputs, TextRounds, acceptance_by_context, run
from eyas.evaluation.replay import find_turns
from eyas.features import capture
from eyas.features.reader import Features
from eyas.model.target import Target
from eyas.train import train as loop
from eyas.tree.acceptance_length import RequestRounds

CONFIG = EvalConfig(depth=4, top_k=3, nodes=10, batch_tokens=200)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, target: Target, features: Path) -> Path:
    out = tmp_path_factory.mktemp("head")
    config = loop.TrainConfig(
        steps=4, updates=60, batch_tokens=100, draft_vocab_size=200, learning_rate=1e-2, dtype="float32"
    )
    loop.run(config, features, target, out, progress=False)
    return out


def test_the_file_says_what_the_design_asks(target: Target, features: Path, head: Path, tmp_path: Path) -> None:
    run(CONFIG, EvalInputs(head, features), target, tmp_path / "a", progress=False)
    found = json.loads((tmp_path / "a" / "acceptance.json").read_text())
    assert found["schema"] == 1
    assert found["tree"] == {"depth": 4, "top_k": 3, "nodes": 10}
    stored = Features(features)
    held_out = [next(stored.rows([i])) for i in stored.indices("held_out")]
    assert set(found["tasks"]) == {"math", "chat"} == set(found["references"]["ngram4"])
    for task, entry in found["tasks"].items():
        mine = [row for row in held_out if row.task == task]
        assert entry["prompts"] == len(mine)
        # Every token of the answers but the first of each, which the prefill gives.
        tokens = sum(int(row.loss_mask_T.sum()) - 1 for row in mine)
        for group in (entry, found["references"]["ngram4"][task], found["references"]["prompt_lookup"][task]):
            assert group["accepted"] == tokens
            assert group["acceptance_length"] == pytest.approx(tokens / group["rounds"])
            assert group["ci95"][0] <= group["acceptance_length"] <= group["ci95"][1]
        logits = [target.logits(row.hidden_UD) for row in mine]
        unsure = torch.cat([one.softmax(-1).amax(-1) < 0.9 for one in logits])
        assert sum(part["rounds"] for part in entry["by_context"].values()) == entry["rounds"]
        assert entry["uncertain_share"] == pytest.approx(float(unsure.float().mean()))
    assert found["all"]["accepted"] == sum(entry["accepted"] for entry in found["tasks"].values())
    assert found["looping"] is None
    assert set(found["arms"]) == {"chain8", "tree8", "tree16", "tree32"}
    for name, entry in found["arms"].items():
        assert entry["rounds"] * entry["acceptance_length"] == pytest.approx(found["all"]["accepted"]), name
        assert len(entry["by_depth"]) <= {"tree8": 4, "tree16": 6}.get(name, 8)
    lengths = {name: entry["acceptance_length"] for name, entry in found["arms"].items()}
    assert lengths["tree8"] <= lengths["tree16"] <= lengths["tree32"]
    # How texts are grouped does not show, and neither does running again.
    run(dataclasses.replace(CONFIG, batch_tokens=1), EvalInputs(head, features), target, tmp_path / "b", progress=False)
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_rounds_are_told_apart_by_where_they_stand() -> None:
    """By hand: two prompts of 250 and 1,020 tokens, nothing between 513 and 1,024 in the first."""
    short = TextRounds(RequestRounds((6, 1, 4), (5, 1, 3)), (250, 256, 257))
    long = TextRounds(RequestRounds((3, 2, 1), (2, 1, 1)), (1020, 1023, 1025))
    found = acceptance_by_context([short, long], 0)
    assert list(found) == ["<=256", "<=512", "<=1024", "<=2048"]
    told = {name: (entry["prompts"], entry["rounds"], entry["acceptance_length"]) for name, entry in found.items()}
    assert told == {"<=256": (1, 2, 3.5), "<=512": (1, 1, 4.0), "<=1024": (1, 2, 2.5), "<=2048": (1, 1, 1.0)}
    assert list(acceptance_by_context([long], 0)) == ["<=1024", "<=2048"]


def test_looping_answers_are_counted_apart(target: Target, features: Path, head: Path, tmp_path: Path) -> None:
    conversations = features.parent / "conversations"
    flagged = tmp_path / "conversations"
    flagged.mkdir()
    lines = (
        (conversations / "part-00000.jsonl").read_text().replace('"task": "math"', '"task": "math", "looping": "true"')
    )
    (flagged / "part-00000.jsonl").write_text(lines)
    origin = StageInputs("respond", "flagged", {})
    finish_stage(flagged, origin, 0.0)
    capture.run(capture.CaptureConfig(held_out=1.0), flagged, target, tmp_path / "features", progress=False)
    inputs = EvalInputs(head, tmp_path / "features", training=features)
    run(CONFIG, inputs, target, tmp_path / "eval", progress=False)
    found = json.loads((tmp_path / "eval" / "acceptance.json").read_text())
    assert set(found["tasks"]) == {"chat"}
    assert found["looping"]["prompts"] == 6
    assert found["all"]["prompts"] == 6


def test_acceptance_by_mode_and_by_phase(
    target: Target, features: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target.tokenizer, "chat_template", f"{target.tokenizer.chat_template}{{# <think> </think> #}}")
    conversations = tmp_path / "conversations"
    conversations.mkdir()
    lines = []
    for number, text in enumerate(["<think>abcabc</think>defdef", "ghighi"] * 2):
        ids = tuple(target.tokenizer.encode(text, add_special_tokens=False))
        messages = (Message("user", f"question {number}"), Message("assistant", text))
        tags = {"task": "chat", MODE_TAG: ["thinking", "direct"][number % 2]}
        turn = Turn(ids, (True,) * len(ids), "length")
        lines.append(Conversation(f"c:{number}", "c", messages, tags, turns=(turn,)).to_line())
    (conversations / "part-00000.jsonl").write_bytes(b"".join(lines))
    finish_stage(conversations, StageInputs("respond", "modes", {}), 0.0)
    capture.run(capture.CaptureConfig(held_out=1.0), conversations, target, tmp_path / "features", progress=False)
    run(CONFIG, EvalInputs(head, tmp_path / "features", features), target, tmp_path / "eval", progress=False)
    found = json.loads((tmp_path / "eval" / "acceptance.json").read_text())
    assert {name: entry["prompts"] for name, entry in found["modes"].items()} == {"direct": 2, "thinking": 2}
    assert sum(entry["accepted"] for entry in found["modes"].values()) == found["all"]["accepted"]
    phases = found["all"]["by_phase"]
    assert {name: entry["prompts"] for name, entry in phases.items()} == {"content": 4, "thoughts": 2}
    assert sum(entry["rounds"] for entry in phases.values()) == found["all"]["rounds"]
    assert "by_phase" in found["modes"]["thinking"]
    assert "by_phase" not in found["modes"]["direct"]
    assert "by_turn" not in found["all"]


def test_acceptance_by_turn(target: Target, features: Path, head: Path, tmp_path: Path) -> None:
    """The conversations have one to six answers."""
    conversations = tmp_path / "conversations"
    conversations.mkdir()
    lines = []
    for number in (1, 2, 6):
        texts = [f"{letter}bc{letter}bc" for letter in "defghi"[:number]]
        ids = [tuple(target.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        messages = [part for text in texts for part in (Message("user", "go on"), Message("assistant", text))]
        turns = tuple(Turn(some, (True,) * len(some), "stop") for some in ids)
        lines.append(Conversation(f"c:{number}", "c", tuple(messages), {"task": "chat"}, turns=turns).to_line())
    (conversations / "part-00000.jsonl").write_bytes(b"".join(lines))
    finish_stage(conversations, StageInputs("respond", "turns", {}), 0.0)
    capture.run(capture.CaptureConfig(held_out=1.0), conversations, target, tmp_path / "features", progress=False)
    run(CONFIG, EvalInputs(head, tmp_path / "features", features), target, tmp_path / "eval", progress=False)
    found = json.loads((tmp_path / "eval" / "acceptance.json").read_text())["all"]
    turns = found["by_turn"]
    assert {label: entry["prompts"] for label, entry in turns.items()} == {"1": 3, "2": 2, "3-5": 1, "6+": 1}
    assert sum(entry["rounds"] for entry in turns.values()) == found["rounds"]


def test_rows_of_one_answer_name_its_number() -> None:
    ids_T, loss_mask_T = torch.arange(9), torch.tensor([0, 1, 1, 0, 0, 1, 1, 1, 0]).bool()
    assert [(turn, one.start) for turn, one in find_turns("a", ids_T, loss_mask_T)] == [(1, 1), (2, 5)]
    assert [(turn, one.start) for turn, one in find_turns("a#x", ids_T, loss_mask_T)] == [(1, 1), (2, 5)]
    assert [turn for turn, _ in find_turns("a#4", ids_T[:4], loss_mask_T[:4])] == [5]


def test_what_does_not_belong_together_is_refused(target: Target, features: Path, head: Path, tmp_path: Path) -> None:
    other = Target.load(tiny_target(tmp_path / "other", seed=5), torch.float32, layers=LAYERS)
    with pytest.raises(InputError, match="digest"):
        run(CONFIG, EvalInputs(head, features), other, tmp_path / "eval", progress=False)
    with pytest.raises(InputError, match=r"config\.json"):
        run(CONFIG, EvalInputs(tmp_path, features), target, tmp_path / "eval", progress=False)
    with pytest.raises(UsageError, match="tree nodes = 1"):
        EvalConfig(nodes=1)
    nothing = capture.CaptureConfig(held_out=0.0)
    capture.run(nothing, features.parent / "conversations", target, tmp_path / "features", progress=False)
    with pytest.raises(InputError, match=r"have no held-out row\. Raise capture\.held_out"):
        run(CONFIG, EvalInputs(head, tmp_path / "features"), target, tmp_path / "eval", progress=False)
    assert not (tmp_path / "eval").exists()
