"""A tiny target and features of its answers, made once per session."""

from pathlib import Path

import pytest
import torch
from tests.features.small import LAYERS, write_conversations
from tests.tiny import tiny_target

from eyas.features import capture
from eyas.model.target import Target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_target(tmp_path_factory.mktemp("target")), torch.float32, layers=LAYERS)


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Path:
    run = tmp_path_factory.mktemp("run")
    write_conversations(run / "conversations", target, 12, 20)
    config = capture.CaptureConfig(dtype="float32", held_out=0.3)
    capture.run(config, run / "conversations", target, run / "features", progress=False)
    return run / "features"
