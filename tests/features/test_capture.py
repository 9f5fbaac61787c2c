import dataclasses
import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.e2e.processes import context
from tests.features.small import LAYERS, capture_rank, contents
from transformers import AutoModelForCausalLM

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, finish_stage, read_provenance
from eyas.chat.conversation import Conversation, Message, Turn, read_conversation_dir
from eyas.features.capture import CaptureConfig, run
from eyas.features.examples import TextRow, assign_splits, build_text_rows
from eyas.features.extract import prefill_attention
from eyas.features.layout import teacher_positions
from eyas.features.reader import Features
from eyas.model.target import Target

CONFIG = CaptureConfig(dtype="float32", shard_bytes=120_000, batch_tokens=300, held_out=0.2)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory, target: Target, conversations: Path) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("captured") / "features"
    run(CONFIG, conversations, target, out, progress=False)
    return out


@torch.no_grad()
def test_features_are_the_hidden_states_of_transformers(captured: Path, target: Target, conversations: Path) -> None:
    features = Features(captured)
    assert len(features.manifest.shards) > 1
    assert len(features.manifest.rows) == 12
    reference = AutoModelForCausalLM.from_pretrained(target.directory, dtype=torch.float32, attn_implementation="eager")
    lines = (conversations / "part-00000.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        row = next(features.rows([number]))
        record = json.loads(line)
        answer = record["turns"][0]["token_ids"]
        assert row.id == record["id"]
        assert row.ids_T[-len(answer) :].tolist() == answer
        assert row.loss_mask_T.tolist() == [False] * (len(row.ids_T) - len(answer)) + [True] * len(answer)
        states = reference(row.ids_T[None], output_hidden_states=True).hidden_states
        torch.testing.assert_close(row.aux_TL, torch.cat([states[i][0] for i in LAYERS], -1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(row.hidden_UD, states[-1][0, :-1][row.loss_mask_T[1:]], atol=1e-4, rtol=1e-4)
        # Greedy answers: the stored teacher says each generated token.
        said = target.logits(row.hidden_UD).argmax(-1)
        assert torch.equal(said, row.ids_T[1:][row.loss_mask_T[1:]])


@pytest.mark.parametrize(
    ("dtype", "shard_bytes"), [pytest.param("float32", 120_000, marks=pytest.mark.full), ("int8", 30_000)]
)
def test_killed_and_run_again_gives_the_same_bytes(
    dtype, shard_bytes: int, captured: Path, target: Target, conversations: Path, tmp_path: Path
) -> None:
    out, config = tmp_path / "features", dataclasses.replace(CONFIG, dtype=dtype, shard_bytes=shard_bytes)
    if config != CONFIG:
        captured = tmp_path / "undisturbed"
        run(config, conversations, target, captured, progress=False)
    arguments = (config, target.directory, conversations, out, 0, True)
    process = context().Process(target=capture_rank, args=arguments, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = sorted(path.name for path in out.glob("shard-*"))
    assert left, "no shard was finished before the kill"
    assert not (out / "manifest.json").exists()
    kept = (out / left[0]).stat().st_mtime_ns
    # The undisturbed run was on the same target under another path: paths must not reach the bytes.
    run(config, conversations, target, out, progress=False)
    assert (out / left[0]).stat().st_mtime_ns == kept
    assert contents(out) == contents(captured)
    assert read_provenance(out).digest == read_provenance(captured).digest


def test_a_shard_of_other_settings_or_with_a_flipped_byte_is_made_again(
    captured: Path, target: Target, conversations: Path, tmp_path: Path
) -> None:
    out = tmp_path / "features"
    out.mkdir()
    whole = (captured / "shard-00000.safetensors").read_bytes()
    (out / "shard-00000.safetensors").write_bytes(whole[:-100] + b"\0" * 100)
    (out / "shard-00001.safetensors").write_bytes(whole)
    (out / "shard-00099.safetensors").write_bytes(whole)
    run(CONFIG, conversations, target, out, progress=False)
    assert contents(out) == contents(captured)


def test_a_finished_directory_is_left_alone(captured: Path, target: Target, conversations: Path) -> None:
    before = (captured / "provenance.json").stat().st_mtime_ns
    run(CONFIG, conversations, target, captured, progress=False)
    assert (captured / "provenance.json").stat().st_mtime_ns == before


def test_damaged_conversations_are_refused(target: Target, conversations: Path, tmp_path: Path) -> None:
    copy = tmp_path / "conversations"
    copy.mkdir()
    for path in conversations.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    with (copy / "part-00000.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(InputError, match=r"part-00000\.jsonl has digest sha256:.*, but sha256:.* is recorded"):
        run(CONFIG, copy, target, tmp_path / "features", progress=False)
    assert not (tmp_path / "features").exists()


def test_long_rows_are_cut_and_counted(target: Target, conversations: Path, tmp_path: Path) -> None:
    run(CaptureConfig(max_length=60), conversations, target, tmp_path / "features", progress=False)
    manifest = Features(tmp_path / "features").manifest
    assert max(row.length for row in manifest.rows) == 60
    assert 0 < manifest.num_cut <= 12
    assert manifest.dtype == "fp8"


def two_turns(first_ids: tuple[int, ...], text: str) -> Conversation:
    turns = (Turn(first_ids, (True,) * len(first_ids), "length"), Turn((70, 71), (True, True), "length"))
    said = [("user", "a"), ("assistant", text), ("user", "b"), ("assistant", "fg")]
    messages = tuple(Message(role, content) for role, content in said)  # type: ignore[arg-type]
    return Conversation("two", "src", messages, {}, turns=turns)


def test_a_row_ends_with_its_last_generated_token(target: Target, tmp_path: Path) -> None:
    """Cut in the middle of the second prompt: what stands behind the first answer teaches nothing."""
    ids = tuple(target.tokenizer.encode("hello<|end|>", add_special_tokens=False))
    conversation = two_turns(ids, "hello")
    (text,) = build_text_rows(conversation, target.tokenizer)
    end = text.loss_mask.index(True) + len(ids)
    (tmp_path / "said").mkdir()
    (tmp_path / "said" / "part-00000.jsonl").write_bytes(conversation.to_line())
    finish_stage(tmp_path / "said", StageInputs("respond", "test", {}), 0.0)
    run(CaptureConfig(max_length=end + 4, held_out=0.0), tmp_path / "said", target, tmp_path / "out", progress=False)
    features = Features(tmp_path / "out")
    (row,) = features.rows([0])
    assert (len(row.ids_T), features.manifest.num_cut) == (end, 1)
    assert (row.aux_TL.shape[0], row.hidden_UD.shape[0]) == (end, len(ids))
    assert features.manifest.rows[0].num_taught == len(ids)


def test_turns_share_a_row_where_the_text_allows(target: Target) -> None:
    ids = tuple(target.tokenizer.encode("hello<|end|>", add_special_tokens=False))
    (row,) = build_text_rows(two_turns(ids, "hello"), target.tokenizer)
    assert (row.id, row.task, sum(row.loss_mask)) == ("two", "src", len(ids) + 2)
    # Ids that their own text does not give back: each turn is a row of its own, supervised once.
    first, second = build_text_rows(two_turns((*ids[:-2], 3, ids[-1]), "hello"), target.tokenizer)
    assert (first.id, second.id) == ("two#0", "two#1")
    assert (sum(first.loss_mask), sum(second.loss_mask)) == (len(ids), 2)
    assert first.conversation == second.conversation == "two"


@torch.no_grad()
def test_what_rows_of_a_conversation_share_is_stored_once(target: Target, tmp_path: Path) -> None:
    """Three answers whose ids their text does not give back: three rows, each beginning with the prompt before it."""
    ids = tuple(target.tokenizer.encode("hello<|end|>", add_special_tokens=False))
    odd = (*ids[:-2], 3, ids[-1])
    said = [(role, text) for text in ("a", "b", "c") for role in ("user", "assistant")]
    messages = tuple(Message(role, "hello" if role == "assistant" else text) for role, text in said)  # type: ignore[arg-type]
    turns = tuple(Turn(odd, (True,) * len(odd), "stop") for _ in range(3))
    lines = [Conversation(f"c:{n}", "src", messages, {}, turns=turns).to_line() for n in range(2)]
    (tmp_path / "said").mkdir()
    (tmp_path / "said" / "part-00000.jsonl").write_bytes(b"".join(lines))
    finish_stage(tmp_path / "said", StageInputs("respond", "test", {}), 0.0)
    config = CaptureConfig(dtype="float32", held_out=0.0, shard_bytes=6_000)
    run(config, tmp_path / "said", target, tmp_path / "out", progress=False)
    features = Features(tmp_path / "out")
    infos = features.manifest.rows
    assert [info.shared > 0 for info in infos] == [False, True, True] * 2
    assert infos[2].shared > infos[1].shared > 5
    assert any(one.shard != other.shard for one, other in pairwise(infos) if other.shared)
    texts = build_text_rows(next(iter(read_conversation_dir(tmp_path / "said"))), target.tokenizer)
    for row, text in zip(features.rows(range(3)), texts, strict=True):
        assert row.ids_T.tolist() == text.ids[: len(row.ids_T)]
        out = target.forward(row.ids_T[None], torch.arange(len(row.ids_T))[None], prefill_attention, want_aux=True)
        assert out.aux_BTL is not None
        torch.testing.assert_close(row.aux_TL, out.aux_BTL[0])
        torch.testing.assert_close(row.hidden_UD, out.hidden_BTD[0][teacher_positions(row.loss_mask_T)])
    tokens = sum(info.length for info in infos)
    shared = sum(info.shared for info in infos)
    assert shared > tokens / 3
    vectors = sum(shard.num_bytes for shard in features.manifest.shards) // (4 * target.info.hidden_size)
    assert vectors < 3 * (tokens - shared) + sum(info.num_taught for info in infos) + 40  # and headers, ids


def test_splits_hold_out_some_of_each_task_and_keep_conversations_together() -> None:
    texts = [TextRow(f"{i}#{turn}", str(i), f"task {i % 3}", [], [], False) for i in range(60) for turn in range(2)]
    splits = assign_splits(texts, 0.1)
    assert splits == assign_splits(texts[::-1], 0.1)
    for task in range(3):
        assert sum(splits[str(i)] == "held_out" for i in range(task, 60, 3)) == 2
    assert set(assign_splits(texts, 0.0).values()) == {"train"}
    assert set(assign_splits(texts, 1.0).values()) == {"held_out"}
    few = [TextRow(str(i), str(i), "a", [], [], False) for i in range(2)]
    assert sorted(assign_splits(few, 0.01).values()) == ["held_out", "train"]
