"""A tiny target and its conversations, made once per session."""

from pathlib import Path

import pytest
import torch
from tests.features.small import LAYERS, write_conversations
from tests.tiny import tiny_target

from eyas.model.target import Target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target")), torch.float32, layers=LAYERS)


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    return write_conversations(tmp_path_factory.mktemp("run") / "conversations", target, 12, 16)
