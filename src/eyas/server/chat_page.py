"""GET /ui: serves a chat page that shows the draft tree of each round. Its static files need no API key.

The page calls /v1/models, /v1/chat/completions and /metrics of the same server. The user types the API key into the
page.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from eyas.base.config import load_toml

PAGE = load_toml(Path(__file__).with_suffix(".toml"))


def add_ui_routes(app: FastAPI) -> tuple[str, ...]:
    """Adds the routes of the page and returns their paths, which need no API key."""
    for path, (name, media_type) in PAGE["files"].items():
        app.add_api_route(path, _file_route(name, media_type), methods=["GET"], include_in_schema=False)
    return tuple(PAGE["files"])


def _file_route(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = (Path(__file__).parent / "ui" / name).read_bytes()

    async def send() -> Response:
        return Response(content, headers=PAGE["headers"], media_type=media_type)

    return send
