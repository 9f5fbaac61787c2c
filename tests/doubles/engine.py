"""An engine as the entrypoints start it: writes down how it was called, then answers whatever it is asked.

EYAS_TEST_SEEN names the file. A path that ends with /slow streams until the client leaves, which is written down, too.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if b'"stream"' in body:
            self._stream()
            return
        told = {"path": self.path, "method": self.command, "body": body.decode(), "headers": dict(self.headers)}
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for number in range(1000):
                self.wfile.write(b"data: %d\n\n" % number)
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            Path(f"{os.environ['EYAS_TEST_SEEN']}.left").touch()
        self.close_connection = True


def main() -> None:
    """Serve at --port until SIGTERM."""
    seen = Path(os.environ["EYAS_TEST_SEEN"])
    seen.with_suffix(".part").write_text(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}))
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    seen.with_suffix(".part").rename(seen)
    server.serve_forever(poll_interval=0.05)
    sys.exit(int(os.environ.get("EYAS_TEST_CODE", "0")))


if __name__ == "__main__":
    main()
