"""GET /ui: a chat page that shows what was drafted. Static files of the package, which need no key and hold nothing.

The page asks /v1/models, /v1/chat/completions and /metrics of the same server, with the key that its reader types in.
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
# Its own two scripts and its style, questions to its own server, and nothing else: text can never become code.
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
    """Add the page's routes; their paths, which need no key."""
    for path, (name, kind) in FILES.items():
        app.add_api_route(path, _file_route(name, kind), methods=["GET"], include_in_schema=False)
    return tuple(FILES)


def _file_route(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = files("eyas.server").joinpath("ui", name).read_bytes()

    async def send() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return send
