"""Loopback servers of Vertex AI and of its bucket, shared by the tests of endpoints and of jobs."""

import pytest
from tests.doubles.stores import gcs
from tests.doubles.vertex import FakeVertex


@pytest.fixture
def api():
    with FakeVertex() as running:
        yield running


@pytest.fixture
def bucket(monkeypatch):
    with gcs(monkeypatch) as store:
        yield store
