"""The KV memory of a server is counted in the bytes of all tensors that have a row for each token."""

import pytest
from tests.engine.small import Spoken, random_draft

from eyas.drafters.eagle3 import Eagle3Drafter
from eyas.engine import engine_builder
from eyas.engine.engine import Engine
from eyas.engine.engine_builder import CPU_SHARE, EngineOptions
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
