"""The part of the GCS JSON API that gcsfs speaks, on loopback: objects, listings, ranges, both kinds of upload.

It honours `ifGenerationMatch`, and can be told to misbehave: see `Fault`. Written after
https://cloud.google.com/storage/docs/json_api/v1 and what gcsfs asks for; authorisation is not looked at.
"""

import base64
import hashlib
import json
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
from tests.doubles.loopback import Loopback


@dataclass
class Fault:
    """Describes how the store answers the next requests that match.

    Attributes:
        method: The method of a matching request.
        path: A pattern that its path contains.
        what: A status: the request is not done, and this status is answered. "lost": it is done, and 503 is answered.
            "half": the body of the answer and the connection end in the middle.
        times: The number of requests that are answered so.
        body: A pattern that the body of a matching request contains.
    """

    method: str
    path: str
    what: int | str
    times: int = 1
    body: bytes = b""


@dataclass
class FakeGcs(Loopback):
    """A server with one bucket's worth of objects, shared by all names of buckets."""

    delay_s: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, tuple[str, bool, bytearray]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"store": self})

    def fault(self, method: str, path: str, body: bytes = b"") -> int | str | None:
        """What the next request of this kind gets instead of an honest answer."""
        with self.lock:
            self.requests.append((method, path))
            for fault in self.faults:
                matches = fault.method == method and re.search(fault.path, path) and re.search(fault.body, body)
                if fault.times and matches:
                    fault.times -= 1
                    return fault.what
        return None

    def create(self, name: str, data: bytes, only_new: bool) -> bool:
        """False where ifGenerationMatch=0 was asked for and the object is there."""
        with self.lock:
            if only_new and name in self.objects:
                return False
            self.objects[name] = data
            self.generations[name] = self.generations.get(name, 0) + 1
            return True

    def resource(self, name: str) -> dict[str, Any]:
        bucket, _, key = name.partition("/")
        data, now = self.objects[name], "2026-01-01T00:00:00.000Z"
        md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
        crc = base64.b64encode(google_crc32c.Checksum(data).digest()).decode()
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": bucket,
            "size": str(len(data)),
            "generation": str(self.generations[name]),
            "md5Hash": md5,
            "crc32c": crc,
            "timeCreated": now,
            "updated": now,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: FakeGcs
    what: int | str | None = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(self.store.delay_s)
        self.what = self.store.fault(method, self.path, body)
        if isinstance(self.what, int):
            self._send(self.what, {"error": {"code": self.what, "message": "as the test asked for"}})
            return
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        found = re.fullmatch(r"(/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", url.path)
        if url.path.startswith("/session/"):
            self._chunk(method, url.path.removeprefix("/session/"), body)
        elif found is None:
            self._send(404, {})
        else:
            kind, bucket, key = found[1], found[2], unquote(found[3] or "")
            if kind == "/upload":
                self._upload(bucket, query, body)
            elif method == "DELETE":
                self._delete(f"{bucket}/{key}")
            elif key:
                self._read(f"{bucket}/{key}", query.get("alt") == "media")
            elif url.path.endswith("/o"):
                self._list(bucket, query)
            else:
                self._send(200, {"kind": "storage#bucket", "name": bucket})

    def _read(self, name: str, media: bool) -> None:
        data = self.store.objects.get(name)
        if data is None:
            self._send(404, {"error": {"code": 404, "message": "no such object"}})
        elif not media:
            self._send(200, self.store.resource(name))
        else:
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if span is None:
                self._send(200, data)
            else:
                self._send(206, data[int(span[1]) : int(span[2]) + 1 if span[2] else None])

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys = sorted(name.partition("/")[2] for name in self.store.objects if name.startswith(f"{bucket}/"))
        items, prefixes = [], []
        for key in keys:
            if not key.startswith(prefix):
                continue
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                prefixes.append(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.store.resource(f"{bucket}/{key}"))
        self._send(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(set(prefixes))})

    def _delete(self, name: str) -> None:
        with self.store.lock:
            gone = self.store.objects.pop(name, None)
        self._send(204 if gone is not None else 404, {})

    def _upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        only_new = query.get("ifGenerationMatch") == "0"
        if query["uploadType"] == "resumable":
            session = uuid.uuid4().hex
            name = f"{bucket}/{query.get('name') or json.loads(body)['name']}"
            self.store.sessions[session] = (name, only_new, bytearray())
            self._send(200, {}, {"Location": f"{self.store.url}/session/{session}"})
            return
        boundary = re.search('boundary="?([^"]+)"?', self.headers["Content-Type"])
        assert boundary is not None
        parts = body.split(b"--" + boundary[1].encode())
        metadata, data = (part.partition(b"\n\n")[2] for part in parts[1:3])
        self._put(f"{bucket}/{json.loads(metadata)['name']}", data.removesuffix(b"\n"), only_new)

    def _chunk(self, method: str, session: str, body: bytes) -> None:
        if session not in self.store.sessions:
            self._send(404, {})
            return
        name, only_new, data = self.store.sessions[session]
        if method == "DELETE":
            del self.store.sessions[session]
            self._send(499, {})
            return
        span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers["Content-Range"])
        assert span is not None, self.headers["Content-Range"]
        start, end, total = map(int, span.groups())
        data[start:] = body
        if end + 1 == total:
            self._put(name, bytes(data), only_new)
        else:
            self._send(308, {}, {"Range": f"bytes=0-{end}"})

    def _put(self, name: str, data: bytes, only_new: bool) -> None:
        if not self.store.create(name, data, only_new):
            self._send(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        elif self.what == "lost":
            self._send(503, {"error": {"code": 503, "message": "the answer was lost"}})
        else:
            self._send(200, self.store.resource(name))

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/octet-stream" if isinstance(body, bytes) else "application/json")
        self.send_header("Content-Length", str(0 if status == 204 else len(data)))
        self.end_headers()
        if self.what == "half":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif status != 204:
            self.wfile.write(data)
