"""Layers captured as graphs: equal outputs with merged weights. torch.compile is left out, but for one test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.families import FAMILIES, family_target
from tests.tiny import tiny_target
from torch import Tensor

from eyas.kernels.attention_op import CompileError
from eyas.kernels.compiled_package import attend_to_text
from eyas.kernels.layer_compile import CompiledLayer, compile_layers
from eyas.model.attention import DenseAttention, PackedAttention
from eyas.model.head import Head, HeadConfig
from eyas.model.submodules import find_layers
from eyas.model.target import Target


def run(target: Target, rows: int) -> Tensor:
    ids_1T = torch.arange(rows)[None]
    with torch.inference_mode():
        return target.forward(ids_1T * 5 % 288, ids_1T, PackedAttention(attend_to_text)).hidden_BTD


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(function: Callable[..., Tensor], fullgraph: bool, options: Any) -> Callable[..., Tensor]:
        assert fullgraph
        return function

    monkeypatch.setattr(torch, "compile", same)


QUICK = ("llama", "qwen2", "gemma2", "gpt_oss")
NAMES = [pytest.param(one.name, marks=() if one.name in QUICK else pytest.mark.full) for one in FAMILIES]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("family", NAMES)
def test_families(family: str, tmp_path: Path) -> None:
    target = Target.load(family_target(tmp_path, family), torch.float32)
    wanted = {rows: run(target, rows) for rows in (1, 2, 33)}
    if family == "llama4":  # its rotations are complex numbers, which export does not accept
        with pytest.raises(CompileError):
            compile_layers(target, None)
    else:
        compile_layers(target, None)
        assert all(isinstance(layer.forward, CompiledLayer) for layer in find_layers(target.model))
    assert (target.compiled_forward is None) == (family == "llama4")
    for rows, hidden_BTD in wanted.items():
        torch.testing.assert_close(run(target, rows), hidden_BTD, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("uncompiled")
def test_merges_weights_without_a_copy(tmp_path: Path) -> None:
    target = Target.load(tiny_target(tmp_path, "llama"), torch.float32)
    config = HeadConfig.for_target(target.info, draft_vocab_size=144, aux_layer_ids=target.aux_layer_ids)
    head = Head.init(config, 0).pack_projections()
    compile_layers(target, head)
    layer: Any = find_layers(target.model)[2]
    attention, mlp = layer.self_attn, layer.mlp
    for parts in ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)):
        storages = {part.weight.untyped_storage().data_ptr() for part in parts}
        assert len(storages) == 1
    packed = head.midlayer.self_attn.q_proj.weight.untyped_storage()
    assert packed.data_ptr() == head.midlayer.self_attn.v_proj.weight.untyped_storage().data_ptr()


@pytest.mark.usefixtures("uncompiled")
def test_calls_of_others_run_uncompiled(tmp_path: Path) -> None:
    target = Target.load(tiny_target(tmp_path, "qwen3"), torch.float32)
    ids_BT = torch.arange(24).view(2, 12)
    wanted = target.forward(ids_BT, torch.arange(12)[None], DenseAttention(), want_aux=True)
    compile_layers(target, None)
    found = target.forward(ids_BT, torch.arange(12)[None], DenseAttention(), want_aux=True)
    assert wanted.aux_BTL is not None
    assert found.aux_BTL is not None
    assert torch.equal(found.aux_BTL, wanted.aux_BTL)


def test_a_wrong_graph_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.load(tiny_target(tmp_path, "llama"), torch.float32)

    def wrong(function: Callable[..., tuple[Tensor, ...]], **_: Any) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *tensors: tuple(1.01 * out for out in function(*tensors))

    monkeypatch.setattr(torch, "compile", wrong)
    with pytest.raises(CompileError, match="wrong"):
        compile_layers(target, None)
    assert target.compiled_forward is None
    assert not any(isinstance(layer.forward, CompiledLayer) for layer in find_layers(target.model))


@pytest.mark.full
def test_compiles_twice_for_all_layers(tmp_path: Path) -> None:
    target = Target.load(tiny_target(tmp_path, "llama"), torch.float32)
    wanted = {rows: run(target, rows) for rows in (1, 5, 200)}
    torch._dynamo.utils.counters.clear()
    compile_layers(target, None)
    for rows, hidden_BTD in wanted.items():
        torch.testing.assert_close(run(target, rows), hidden_BTD, atol=1e-4, rtol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
