"""Random targets of three families, and a head that has learnt the answers of one of them by heart."""

from pathlib import Path

import pytest
import torch
from tests.engine.small import Spoken, learn, speak
from tests.tiny import tiny_target

from eyas.drafters.eagle3 import Eagle3Spec
from eyas.model.target import Target
from eyas.tree.shape import chain_shape

FAMILIES = ("llama", "qwen3", "mistral")
# For tests that run each combination of their own parameters on one family, and on the others with --full.
# tests/engine/test_families.py runs every family.
LLAMA_FIRST = ["llama", *(pytest.param(family, marks=pytest.mark.full) for family in FAMILIES[1:])]


@pytest.fixture(scope="session", params=FAMILIES)
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Prompts and what transformers answers, for each family."""
    return speak(tiny_target(tmp_path_factory.mktemp(request.param), request.param, layers=4))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    return speak(tiny_target(tmp_path_factory.mktemp("llama"), "llama", layers=4))


@pytest.fixture(scope="session")
def learnt(llama: Spoken) -> Eagle3Spec:
    """A head that drafts the answers of `llama` well; the shape is to be replaced."""
    head, vocab = learn(llama)
    return Eagle3Spec(head, vocab, chain_shape(4))


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of three layers for tests with thousands of requests."""
    return tiny_target(tmp_path_factory.mktemp("shallow"), "llama", layers=3)


@pytest.fixture(scope="session")
def shallow_target(shallow: Path) -> Target:
    return Target.load(shallow, torch.float32, layers=(1, 2, 3))
