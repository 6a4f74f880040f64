"""Serves the built page (T3-T5) from `static/`, which `scripts/build_page.py` makes of ui/ at the root.

The files are few and small and are read once, so no request touches the disk and no path can lead out. The server adds
the security headers; the page brings its own policy (S6). Nothing of the API lives here.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC: Final = Path(__file__).parent / "static"

CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # What a model writes may name pictures anywhere; loading one would tell its host who reads this.
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
_ALWAYS_ASK: Final = "no-cache"
_NEVER_ASK: Final = "public, max-age=31536000, immutable"
"""For files that have a hash of their content in their name."""

_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title></head><body>
<h1>Holdfast is running</h1>
<p>Its web page has not been built. With Node 20 or later and a network, run <code>make page</code> (or
<code>python scripts/build_page.py</code>) in the checkout, then start the server again.</p>
<p>The API works without it: see <a href="/openapi.json">/openapi.json</a> and <a href="/health">/health</a>.</p>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page, as it is sent."""

    body: bytes
    compressed: bytes | None
    media_type: str
    caching: str
    etag: str

    def answer(self, request: Request) -> Response:
        """The file, or nothing when the browser has it already."""
        headers = {
            "Cache-Control": self.caching,
            "Content-Security-Policy": CONTENT_POLICY,
            "ETag": self.etag,
            "Vary": "Accept-Encoding",
        }
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = self.body
        if self.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = self.compressed
        return Response(body, headers=headers, media_type=self.media_type)


def is_page_built(static: Path = STATIC) -> bool:
    """Is there a page to serve?"""
    return (static / "index.html").is_file()


def page_routes(static: Path = STATIC) -> list[Route]:
    """A route for each file of the page; `/` is index.html, or a page that says how to build it."""
    if not is_page_built(static):
        return [Route("/", _answer_unbuilt, methods=["GET"])]
    routes: list[Route] = []
    for path in sorted(static.rglob("*")):
        if not path.is_file() or path.suffix not in _TYPES:
            continue
        name = path.relative_to(static).as_posix()
        address = "/" if name == "index.html" else f"/{name}"
        routes.append(Route(address, _serve(_load(path, name)), methods=["GET"]))
    return routes


def _serve(file: StaticFile) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return file.answer(request)

    return answer


def _load(path: Path, name: str) -> StaticFile:
    body = path.read_bytes()
    compressed = path.with_name(path.name + ".gz")
    return StaticFile(
        body=body,
        compressed=compressed.read_bytes() if compressed.is_file() else None,
        media_type=_TYPES[path.suffix],
        caching=_NEVER_ASK if name.startswith("assets/") else _ALWAYS_ASK,
        etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
    )


async def _answer_unbuilt(request: Request) -> Response:
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
    return Response(_NOT_BUILT, status_code=404, headers=headers, media_type="text/html")
