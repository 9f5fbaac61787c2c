"""The writes to req_to_token of one launch: one operation on the device, with the result of all writes in order."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eyas.engine.model_runner import ModelRunner
from eyas.memory.kv_cache_manager import TableWrite
from eyas.staging import Staging


@pytest.mark.parametrize("seed", range(5))
def test_later_writes_win(seed: int):
    random = np.random.default_rng(seed)
    table_RC = torch.zeros(6, 40, dtype=torch.int32)
    runner: Any = SimpleNamespace(pool=SimpleNamespace(req_to_token_RC=table_RC), staging=Staging(torch.device("cpu")))
    wanted = np.zeros((6, 40), dtype=np.int32)
    for count in (0, 1, 3, 12):
        writes = []
        for _ in range(count):
            row, column, size = random.integers(6), random.integers(30), random.integers(0, 10)
            writes.append(TableWrite(int(row), int(column), random.integers(1, 1000, size, dtype=np.int32)))
            wanted[row, column : column + size] = writes[-1].slots
        ModelRunner.write_table(runner, writes)
        assert np.array_equal(table_RC.numpy(), wanted)
