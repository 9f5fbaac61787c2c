"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from tests.serve.api.server import Server, new_service, serving

from eyas.model.target import Target


@pytest.fixture(scope="session")
def server(shallow_target: Target) -> Iterator[Server]:
    service = new_service(shallow_target, drafts=True)
    with serving(service) as running:
        yield running
    service.drain(1)


@pytest.fixture(scope="session")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client
