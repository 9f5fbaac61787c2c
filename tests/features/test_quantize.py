import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from tests.features.small import contents, info_of, random_row, stored_row
from tests.features.test_capture import CONFIG

from eyas.base.config import build
from eyas.base.errors import StageError, UsageError
from eyas.base.storage import StoragePath
from eyas.features import capture
from eyas.features.quantize import (
    CODE_DTYPES,
    MAX_CODE,
    StoredDtype,
    dequantize,
    is_finite,
    measure_quantization_error,
    quantize,
)
from eyas.features.reader import Features
from eyas.features.shard import COLUMNS, ShardReader
from eyas.features.store import bytes_per_token, publish_shard, shard_name
from eyas.model.target import Target
from eyas.train import train as loop

EIGHT_BITS: tuple[StoredDtype, ...] = ("int8", "fp8")


def wild(tokens: int = 200, parts: int = 3, width: int = 64) -> torch.Tensor:
    """Magnitudes from 1e-30 to 1e30, with large channels among small ones."""
    x_TPD = torch.randn(tokens, parts, width) * 10 ** torch.empty(tokens, parts, 1).uniform_(-30, 30)
    return (x_TPD * 10 ** torch.empty(width).uniform_(-3, 3)).flatten(1)


def error_bound(x_TPD: torch.Tensor, scales_TP: torch.Tensor, dtype: StoredDtype) -> torch.Tensor:
    scales_TP1 = scales_TP.double()[..., None]
    if dtype == "int8":
        return (scales_TP1 / 2).expand_as(x_TPD)
    return torch.maximum(x_TPD.abs() / 16, scales_TP1 / 1024)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_value_comes_back_within_the_bound(dtype: StoredDtype) -> None:
    x_TL = wild()
    codes_TL, scales_TP = quantize(x_TL, 3, dtype)
    assert (codes_TL.dtype, scales_TP.dtype) == (CODE_DTYPES[dtype], torch.bfloat16)
    assert (codes_TL.element_size(), scales_TP.shape) == (1, (200, 3))
    assert is_finite(codes_TL, scales_TP)
    x_TPD = x_TL.double().unflatten(-1, (3, -1))
    # The scale is the largest magnitude over the largest code, but for its own rounding.
    largest_TP = x_TPD.abs().amax(-1) / MAX_CODE[dtype]
    assert ((scales_TP.double() - largest_TP).abs() <= largest_TP / 256).all()
    error_TPD = (dequantize(codes_TL, scales_TP, torch.float64).unflatten(-1, (3, -1)) - x_TPD).abs()
    assert (error_TPD <= error_bound(x_TPD, scales_TP, dtype) * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_what_training_reads_is_the_product_rounded_once(dtype: StoredDtype) -> None:
    stored = quantize(wild(), 3, dtype)
    exact = dequantize(*stored, torch.float64)
    assert torch.equal(dequantize(*stored, torch.float32).double(), exact), "15 bits fit into 24"
    assert torch.equal(dequantize(*stored, torch.bfloat16), exact.bfloat16())
    # Made from its own values a code is the same again: features may be copied through values.
    assert torch.equal(quantize(exact, 3, dtype)[0].float(), stored[0].float())


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_zeros_tiny_and_huge_values(dtype: StoredDtype) -> None:
    zeros = quantize(torch.zeros(2, 6), 3, dtype)
    assert not dequantize(*zeros, torch.float32).any()
    assert is_finite(*zeros)
    for value in (1e-45, 1e-38, 3.4e38, torch.finfo(torch.float32).max):
        x_TL = torch.tensor([[value, -value, value / 2, 0.0]])
        after_TL = dequantize(*quantize(x_TL, 1, dtype), torch.float32)
        assert is_finite(*quantize(x_TL, 1, dtype))
        assert ((after_TL - x_TL).abs() <= x_TL.abs()).all()
    codes, scales = quantize(torch.zeros(0, 6), 3, dtype)
    assert dequantize(codes, scales, torch.float32).shape == (0, 6)


@pytest.mark.parametrize("dtype", list(CODE_DTYPES))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_never_becomes_one(dtype: StoredDtype, value: float) -> None:
    x_TL = torch.randn(4, 6)
    assert is_finite(*quantize(x_TL, 3, dtype))
    x_TL[2, 5] = value
    assert not is_finite(*quantize(x_TL, 3, dtype))


@pytest.mark.parametrize(("dtype", "digest"), [("int8", "8c8163bb3c2b547f"), ("fp8", "82b6b3ddee6e70bd")])
def test_the_bytes_are_these_on_every_machine(dtype: StoredDtype, digest: str) -> None:
    """Input from integers alone: no generator, no transcendental function."""
    integers = (torch.arange(3 * 4 * 512) * 48_271 % 2_147_483_647 % 65_537).view(4, -1) - 32_768
    codes_TL, scales_TP = quantize(integers.float() / 7, 3, dtype)
    data = codes_TL.view(torch.uint8).numpy().tobytes() + scales_TP.view(torch.uint8).numpy().tobytes()
    assert hashlib.sha256(data).hexdigest()[:16] == digest


@pytest.mark.parametrize("dtype", list(CODE_DTYPES))
def test_a_shard_takes_the_bytes_that_are_planned(dtype: StoredDtype, tmp_path: Path) -> None:
    rows = [random_row("." * prompt + "x" * answer, 64, 9) for prompt, answer in ((300, 500), (20, 400), (0, 30))]
    place, stored = StoragePath.of(tmp_path), [stored_row(row, dtype) for row in rows]
    shard = publish_shard(place, 0, [info_of(row) for row in rows], stored, "plan").shard
    tokens, num_taught = sum(len(row.ids_T) for row in rows), sum(len(row.hidden_UD) for row in rows)
    assert num_taught == 500 + 400 + 29
    planned = tokens * bytes_per_token(dtype, 64, num_taught / tokens)
    assert shard.num_bytes == place.join(shard.name).size()
    header = shard.num_bytes - planned
    assert 0 < header < 1024


@pytest.mark.parametrize("dtype", list(CODE_DTYPES))
def test_a_shard_has_the_bytes_that_safetensors_writes(dtype: StoredDtype, tmp_path: Path) -> None:
    rows = [random_row(picture, 8, 9) for picture in ("..xxx", "...", "xx..x.xxx", ".x")]
    stored = [stored_row(row, dtype) for row in rows]
    publish_shard(StoragePath.of(tmp_path), 0, [info_of(row) for row in rows], stored, "plan")
    data = (tmp_path / shard_name(0)).read_bytes()
    tensors = safetensors.torch.load(data)
    assert set(tensors) == set(COLUMNS)
    assert safetensors.torch.save(tensors) == data
    assert torch.equal(tensors["ids_N"], torch.cat([row.ids_T for row in rows]))
    codes = torch.cat([row.aux[0] for row in stored])
    assert torch.equal(tensors["aux_AL"].view(torch.uint8), codes.view(torch.uint8))


def test_the_arithmetic_at_4096() -> None:
    for dtype in EIGHT_BITS:
        assert bytes_per_token(dtype, 4096, 0.6) == pytest.approx(3.6 * 4098 + 5)
        assert bytes_per_token(dtype, 4096, 0.6) <= 14.5 * 1024
    assert bytes_per_token("bfloat16", 4096, 0.6) == pytest.approx(3.6 * 8192 + 5)


@pytest.mark.parametrize("dtype", list(CODE_DTYPES))
def test_rows_come_back_from_their_shard(dtype: StoredDtype, tmp_path: Path) -> None:
    rows = [random_row(picture, 8, 9) for picture in ("..xxx", "...", "xx..x.xxx", ".x")]
    stored = [stored_row(row, dtype) for row in rows]
    place = StoragePath.of(tmp_path)
    note = publish_shard(place, 0, [info_of(row) for row in rows], stored, "plan")
    file = ShardReader(place.join(note.shard.name))
    for info, row, kept in zip(note.rows, rows, stored, strict=True):
        found = file.read_row(info)
        assert found.ids_T.tolist() == row.ids_T.tolist()
        assert torch.equal(found.loss_mask_T, row.loss_mask_T)
        for pair, same in ((found.aux, kept.aux), (found.hidden, kept.hidden), (file.read_aux(info), kept.aux)):
            assert torch.equal(dequantize(*pair, torch.float32), dequantize(*same, torch.float32))
    for (ids_T, mask_T), row in zip(file.read_texts(note.rows), rows, strict=True):
        assert torch.equal(ids_T, row.ids_T)
        assert torch.equal(mask_T, row.loss_mask_T)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_run_in_8_bits_is_told_in_its_manifest(
    dtype: StoredDtype, target: Target, conversations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = capture.CaptureConfig(dtype=dtype, held_out=0.2)
    capture.run(config, conversations, target, tmp_path / "a", progress=True)
    capture.run(config, conversations, target, tmp_path / "b", progress=False)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    manifest = Features(tmp_path / "a").manifest
    assert (manifest.schema, manifest.dtype, manifest.target_revision) == (3, dtype, None)
    assert "value = code * scale" in manifest.quantisation
    error = manifest.quantisation_error
    assert error.num_rows == sum(row.split == "held_out" for row in manifest.rows)
    assert 0 < error.teacher < 0.1
    assert len(error.aux) == 3
    assert all(0 < one < 0.1 for one in error.aux)
    assert f"stored as {dtype}" in capsys.readouterr().err


def test_the_error_is_that_of_the_distributions(target: Target) -> None:
    """Against the definition, one position and one channel at a time."""
    row = random_row("..xxxx", 48, 200)
    error = measure_quantization_error([row], "int8", target)
    after_UD = dequantize(*quantize(row.hidden_UD, 1, "int8"), torch.float32)
    moved = [
        float((target.logits(a).softmax(-1) - target.logits(b).softmax(-1)).abs().sum() / 2)
        for a, b in zip(row.hidden_UD, after_UD, strict=True)
    ]
    assert error.teacher == pytest.approx(sum(moved) / 4, rel=1e-3)
    after_TL = dequantize(*quantize(row.aux_TL, 3, "int8"), torch.float32)
    by_channel = [float((after_TL - row.aux_TL)[:, c].norm() / row.aux_TL[:, c].norm()) for c in range(3 * 48)]
    wanted = [sum(by_channel[layer * 48 : (layer + 1) * 48]) / 48 for layer in range(3)]
    assert error.aux == pytest.approx(wanted, rel=1e-3)
    assert measure_quantization_error([row], "float32", target).aux == (0.0, 0.0, 0.0)


def test_features_that_8_bits_would_spoil_are_refused(target: Target, conversations: Path, tmp_path: Path) -> None:
    config = capture.CaptureConfig(dtype="int8", max_error=1e-6)
    with pytest.raises(
        StageError, match=r"as int8 changes them by .* capture\.max_error allows .* Set capture\.dtype=fp8, or "
    ):
        capture.run(config, conversations, target, tmp_path, progress=False)
    assert not list(tmp_path.iterdir()), "nothing was captured for nothing"
    # What the message advises helps.
    capture.run(capture.CaptureConfig(dtype="float32", max_error=1e-6), conversations, target, tmp_path, progress=False)
    with pytest.raises(UsageError, match=r"capture\.max_error = 0"):
        build(capture.CaptureConfig, {"max_error": 0}, "capture")


def broken_at(target: Target, position: int, wanted: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., object]:
    """The target's forward with one feature replaced in the rows that are `wanted`."""
    forward = target.forward

    def broken(*args: object, **kwargs: object) -> object:
        out = forward(*args, **kwargs)  # type: ignore[arg-type]
        assert out.aux_BTL is not None
        aux_BTL = out.aux_BTL.clone()
        aux_BTL[wanted(args[0]), position, 5] = float("nan")  # type: ignore[arg-type]
        return SimpleNamespace(hidden_BTD=out.hidden_BTD, aux_BTL=aux_BTL)

    return broken


@pytest.mark.parametrize("dtype", ["int8", "fp8", "bfloat16"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_feature_that_is_no_number_names_its_conversation(
    dtype: StoredDtype, split: str, target: Target, conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.run(CONFIG, conversations, target, tmp_path / "whole", progress=False)
    features = Features(tmp_path / "whole")
    chosen = next(i for i, row in enumerate(features.manifest.rows) if row.split == split)
    ids_T = next(features.rows([chosen])).ids_T

    def wanted(ids_BT: torch.Tensor) -> torch.Tensor:
        width = min(ids_BT.shape[1], len(ids_T))
        return (ids_BT[:, :width] == ids_T[:width]).all(1) & (ids_BT.shape[1] >= len(ids_T))

    monkeypatch.setattr(target, "forward", broken_at(target, 3, wanted))
    name = features.manifest.rows[chosen].id
    with pytest.raises(StageError, match=rf"a feature of conversation {name} that is NaN or infinite"):
        capture.run(capture.CaptureConfig(dtype=dtype, held_out=0.2), conversations, target, tmp_path / "a")
    assert not (tmp_path / "a" / "manifest.json").exists()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_head_learns_from_8_bits_what_it_learns_from_32(
    dtype: StoredDtype, target: Target, conversations: Path, tmp_path: Path
) -> None:
    config = loop.TrainConfig(
        steps=3,
        updates=160,
        batch_tokens=40,
        draft_vocab_size=150,
        learning_rate=1e-2,
        dtype="float32",
        log_every=20,
        evaluate_answers=0,  # else each look ends a line of metrics, and the last one stands for few updates
    )
    accuracy = {}
    for name in (dtype, "float32"):
        capture.run(capture.CaptureConfig(dtype=name), conversations, target, tmp_path / name, progress=False)
        loop.run(config, tmp_path / name, target, tmp_path / f"{name} head", progress=False)
        lines = (tmp_path / f"{name} head" / "metrics.jsonl").read_text().splitlines()
        accuracy[name] = json.loads(lines[-1])["accuracy"][0]
    assert accuracy[dtype] > 0.5
    assert accuracy[dtype] > accuracy["float32"] - 0.05
