"""Tiny targets on disk, made once per session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model.tiny import make_model, save_target


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = save_target(make_model(family), tmp_path_factory.mktemp(family))
        return made[family]

    return get
