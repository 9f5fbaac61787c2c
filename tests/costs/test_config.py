"""The keys `plan.*`."""

import pytest

from eyas.base.config import build, to_toml
from eyas.base.errors import UsageError
from eyas.costs.config import PlanConfig

ELSEWHERE = {"capture_tps": 1.0, "train_tps": 1.0, "conversations": 1, "prompt_tokens": 1.0, "answer_tokens": 1.0}


@pytest.mark.parametrize("missing", ELSEWHERE)
def test_other_hardware_needs_rates_and_amounts(missing):
    rest = {name: value for name, value in ELSEWHERE.items() if name != missing}
    with pytest.raises(UsageError, match=rf"plan\.{missing}"):
        PlanConfig(hardware="a GPU", **rest)
    assert not PlanConfig(hardware="a GPU", **ELSEWHERE).is_here
    assert PlanConfig(**rest).is_here


@pytest.mark.parametrize(
    "keys", [{"capture_tps": 0.0}, {"turns": -1.0}, {"price_per_hour": -0.1}, {"train_tps": float("inf")}]
)
def test_numbers_that_are_none(keys):
    with pytest.raises(UsageError, match=rf"plan\.{next(iter(keys))}"):
        build(PlanConfig, keys, "plan")
    free = {"price_per_hour": 0.0, "storage_price_gb_month": 0.0, "storage_months": 0.0}
    assert build(PlanConfig, free, "plan").is_here


def test_a_shape_is_read_and_written():
    shape = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 7, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 16, "vocab_size": 9}
    config = build(PlanConfig, {"shape": shape | {"max_position_embeddings": 64}})
    assert config.shape is not None
    assert "[shape]" in to_toml(config)
    with pytest.raises(UsageError, match=r"shape\.max_position_embeddings"):
        build(PlanConfig, {"shape": shape})
