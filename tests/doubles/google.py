"""Imitates two services of Google Cloud on this machine: the metadata server, which gives tokens, and Secret Manager.

Written after https://docs.cloud.google.com/compute/docs/access/authenticate-workloads and
https://docs.cloud.google.com/secret-manager/docs/reference/rest.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from tests.doubles.loopback import Loopback, send_json

TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


@dataclass
class FakeGoogle(Loopback):
    """secrets: resource name of a version -> value. uses: how many requests get the same token. no_token: one gets 503.

    The tokens are token-1, token-2, and so on.
    """

    secrets: dict[str, str] = field(default_factory=dict)
    uses: int = 10_000
    asked: int = 0
    no_token: set[int] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"store": self})

    @property
    def token(self) -> str:
        """The token that was given last."""
        return f"token-{-(-self.asked // self.uses)}"


class _Handler(BaseHTTPRequestHandler):
    store: FakeGoogle

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        store = self.store
        store.paths.append(self.path)
        name = self.path.removeprefix("/v1/").removesuffix(":access")
        if self.path == TOKEN_PATH and self.headers["Metadata-Flavor"] == "Google":
            store.asked += 1
            token = {"access_token": store.token, "expires_in": 3599, "token_type": "Bearer"}
            send_json(self, 503 if store.asked in store.no_token else 200, token)
        elif self.headers["Authorization"] != f"Bearer {store.token}":
            send_json(self, 401, {"error": {"code": 401}})
        elif name not in store.secrets or not self.path.endswith(":access"):
            send_json(self, 403, {"error": {"code": 403, "message": f"denied on {name}"}})
        else:
            data = base64.b64encode(store.secrets[name].encode()).decode()
            send_json(self, 200, {"name": name, "payload": {"data": data}})


@contextmanager
def google(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[FakeGoogle]:
    """Runs the imitation, and sends the requests of `base.google_auth` to it."""
    with FakeGoogle(**settings) as store:
        monkeypatch.setattr("eyas.base.google_auth.TOKEN_URL", f"{store.url}{TOKEN_PATH}")
        monkeypatch.setattr("eyas.base.google_auth.SECRET_MANAGER", f"{store.url}/v1")
        yield store
