"""What every test has: one seed, no network for models, and the marks `full` and `gpu`."""

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell that starts the tests in the background has Ctrl-C ignored, by them and by all they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Else the first prompts would make a key in the home directory.
os.environ["EYAS_PRIVACY_KEY"] = "a key for tests, of 32 characters"


# The files that take longest run first, so that no worker runs one of them last and alone.
LONGEST_FILES = (
    "kernels/test_aot_compile.py",
    "e2e/test_docs.py",
    "kernels/test_cpu_attention.py",
    "train/test_lost_ranks.py",
    "train/test_together.py",
    "e2e/test_faults.py",
    "kernels/test_triton_attention.py",
    "engine/test_overlap.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests marked full (minutes)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full") and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; runs with --full"))
        if item.get_closest_marker("gpu") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    places = {str(Path(__file__).parent / name): place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what was imported and collected out of garbage collections, and makes these rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random numbers in every test, in whatever order tests run."""
    random.seed(0)
    # A test file without torch need not pay for its import.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch, for tests that compare bytes."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
