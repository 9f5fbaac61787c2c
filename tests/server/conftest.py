"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import openai
import pytest
import torch
from tests.engine.pairs import shallow, shallow_target
from tests.server.server import Server, serving, start_engine

from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.async_engine import AsyncEngine
from eyas.engine.engine import Engine
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.recipe import resolve_head
from eyas.tree.shape import TreeShape

__all__ = ["async_engine", "client", "http", "pair", "server", "shallow", "shallow_target"]


@pytest.fixture(scope="session")
def server(shallow_target: Target) -> Iterator[Server]:
    async_engine = start_engine(shallow_target, drafts=True)
    with serving(async_engine) as running:
        yield running
    async_engine.drain(1)


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def async_engine() -> Iterator[AsyncEngine]:
    """The embedded pair, trees of 16."""
    stored = read_head(resolve_head(EMBEDDED), torch.float32)
    target = Target.load(EMBEDDED, torch.float32, stored.config.aux_layer_ids)
    draft = Eagle3Spec.on(target.model.device, stored, TreeShape(6, 4, 16))
    async_engine = AsyncEngine(Engine(target, [draft], 4, 1024), 16)
    async_engine.start()
    yield async_engine
    async_engine.drain(1)


@pytest.fixture(scope="module")
def pair(async_engine: AsyncEngine) -> Iterator[Server]:
    with serving(async_engine) as server:
        yield server
