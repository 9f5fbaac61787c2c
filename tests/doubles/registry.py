"""A registry of images on loopback that wants a token for what it has: HEAD of manifests, and the token itself."""

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.doubles.loopback import Loopback


@dataclass
class FakeRegistry(Loopback):
    """tags: NAME:TAG -> digest. faults: what the next requests get instead."""

    tags: dict[str, str]
    faults: list[int] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """As images name it."""
        return self.url.removeprefix("http://")

    def handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                if registry.faults:
                    self._send(registry.faults.pop(0), {})
                elif self.headers.get("Authorization") != "Bearer a-token":
                    realm = f'Bearer realm="{registry.url}/token",service="fake",scope="repository:x:pull"'
                    self._send(401, {"WWW-Authenticate": realm})
                else:
                    _, _, rest = self.path.partition("/v2/")
                    digest = registry.tags.get(rest.replace("/manifests/", ":"))
                    is_index = "oci.image.index" in self.headers.get("Accept", "")
                    self._send(200 if digest and is_index else 404, {"Docker-Content-Digest": digest or ""})

            def do_GET(self) -> None:
                registry.scopes += parse_qs(urlsplit(self.path).query)["scope"]
                body = json.dumps({"token": "a-token"}).encode()
                self._send(200, {"Content-Length": str(len(body))})
                self.wfile.write(body)

            def _send(self, status: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

        return Handler
