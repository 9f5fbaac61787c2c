"""GET /ui: serves a chat page that shows the draft tree of each round. Its static files need no API key.

The page calls /v1/models, /v1/chat/completions and /metrics of the same server. The user types the API key into the
page.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

FILES = {
    "/ui": ("index.html", "text/html"),
    "/ui/ui.css": ("ui.css", "text/css"),
    "/ui/ui.js": ("ui.js", "text/javascript"),
    "/ui/tree.js": ("tree.js", "text/javascript"),
}
# Only the page's own scripts, style and server: text of a model or a user can never run as code.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_ui_routes(app: FastAPI) -> tuple[str, ...]:
    """Adds the routes of the page and returns their paths, which need no API key."""
    for path, (name, media_type) in FILES.items():
        app.add_api_route(path, _file_route(name, media_type), methods=["GET"], include_in_schema=False)
    return tuple(FILES)


def _file_route(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = files("eyas.server").joinpath("ui", name).read_bytes()

    async def send() -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)

    return send
