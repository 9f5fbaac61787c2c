"""The KV memory of a server is counted in the bytes of all tensors that have a row for each token."""

import dataclasses

import pytest
import torch
from tests.engine.small import CONTEXT, Spoken, drive, random_draft, tokens

from eyas.base.errors import UsageError
from eyas.drafters.eagle3 import Eagle3Drafter
from eyas.engine import engine_builder
from eyas.engine.engine import Engine
from eyas.engine.engine_builder import CPU_SHARE, EngineOptions
from eyas.kernels.paged_attention import prepare_dense
from eyas.speculation.arms import default_arms
from eyas.tree.shape import TreeShape


@pytest.mark.parametrize("has_head", [True, False])
def test_bytes_of_a_token_are_those_of_the_tensors(
    llama: Spoken, monkeypatch: pytest.MonkeyPatch, has_head: bool
) -> None:
    drafts = [random_draft(llama.target, TreeShape(3, 3, 10))] if has_head else []
    engine = Engine(llama.target, drafts, 2, 64)
    pool, drafters = engine.kv_cache.pool, engine.runner.drafters
    num_rows = pool.num_slots + 1
    num_bytes = pool.kv.nbytes + (0 if pool.aux_ZL is None else pool.aux_ZL.nbytes)
    for drafter in drafters:
        assert isinstance(drafter, Eagle3Drafter)
        num_bytes += drafter.kv[:, :, :num_rows].nbytes
    monkeypatch.setattr(engine_builder, "memory_bytes", lambda: 10**6)
    found = engine_builder._memory_tokens(llama.target, drafts, EngineOptions(slots=10**6), 64)
    assert found == int(CPU_SHARE * 10**6) * num_rows // num_bytes


def test_drafts_change_no_word_with_keys_and_values_in_8_bits(llama: Spoken) -> None:
    """On a CPU, with the dense attention: no kernel of a CPU reads 8 bits. Accepted nodes of trees are moved, too."""
    fp8, draft = torch.float8_e4m3fn, random_draft(llama.target, TreeShape(3, 3, 10))
    draft = dataclasses.replace(draft, arms=default_arms())
    plain, drafted = (
        Engine(llama.target, drafts, 3, CONTEXT, prepare=prepare_dense, kv_dtype=fp8) for drafts in ((), [draft])
    )
    assert plain.kv_cache.pool.kv.dtype == fp8
    assert plain.kv_cache.pool.kv.itemsize == 1
    expected = tokens(drive(plain, llama.requests))
    assert tokens(drive(drafted, llama.requests)) == expected
    assert expected != llama.answers


def test_a_cpu_has_no_memory_of_8_bits(llama: Spoken) -> None:
    with pytest.raises(UsageError, match="--kv-dtype fp8 needs a GPU"):
        engine_builder.build_async_engine(llama.target, [], EngineOptions(2, CONTEXT, kv_dtype="fp8"))
