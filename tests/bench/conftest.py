"""One tiny target with a head for the tests that measure."""

from collections.abc import Iterator

import pytest
import torch
from tests.bench.tiny_pair import TinyPair, tiny_pair


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Runs torch on one thread: small forwards do not profit from a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return tiny_pair(tmp_path_factory.mktemp("target"))
