"""Getting a page: connections that only go where they may, redirects, and what of the body is text.

The address that is checked is the address that is connected to: the check sits where the socket is made, so neither a
spelling, a redirect nor a name that changes its mind gets around it. The HTTP client is imported at the first page, in
a thread, because it takes longer to import than the whole server. Above: the web tool. Below: addresses, html_text.
"""

import asyncio
import importlib
import re
import socket
from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ToolError
from holdfast.tools.subprograms import run_subprogram
from holdfast.tools.threads import in_thread
from holdfast.tools.web.addresses import is_public
from holdfast.tools.web.charsets import decode_page
from holdfast.version import __version__

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

CONNECT_SECONDS: Final = 10.0
MAX_REDIRECTS: Final = 5
USER_AGENT: Final = f"Holdfast/{__version__} (fetch_url)"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TEXTUAL: Final = r"text/.*|application/(.*[+.-])?(json|xml|javascript|ecmascript|yaml|toml|x-ndjson|jsonl?)"
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
"""Compiled when the first page comes: a server that fetches none should not start later for it."""

_HTML_TEXT: Final = str(Path(__file__).with_name("html_text.py"))
"""By its path, because it is run and never imported."""

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class FetchedPage:
    """What came back."""

    def __init__(self, url: str, status: int, reason: str, text: str, *, whole: bool) -> None:
        self.url = url
        self.status = status
        self.reason = reason
        self.text = text
        self.whole = whole


class PageFetcher:
    """Fetches pages. No cookies, no proxies from the environment, nothing kept between calls."""

    def __init__(self, *, allow_private_hosts: Iterable[str], max_bytes: int, readable_seconds: float) -> None:
        self._allowed = frozenset(_plain_host(host) for host in allow_private_hosts)
        self._max_bytes = max_bytes
        self._readable_seconds = readable_seconds
        self._has_client = False

    async def fetch(self, address: str, hosts: Collection[str] | None = None) -> FetchedPage:
        """Fetch a page, and follow its redirects, to these hosts or patterns of them, else anywhere (S17).

        Raises:
            ToolError: it cannot be reached, may not be, or is not text.
        """
        if not self._has_client:
            await asyncio.to_thread(importlib.import_module, "aiohttp")
            self._has_client = True
        from aiohttp import ClientError

        url = _parse_url(address)
        for _ in range(MAX_REDIRECTS + 1):
            _check_url(url)
            refused: list[str] = []
            try:
                async with (
                    self._open_session(url, refused) as session,
                    session.get(url, allow_redirects=False) as answer,
                ):
                    location = answer.headers.get("Location")
                    if answer.status not in _REDIRECTS or location is None:
                        return await self._read(answer, url)
                    url = url.join(_parse_url(location))
                    host = _plain_host(url.host or "")
                    if hosts is not None and host not in hosts and not any(fnmatchcase(host, each) for each in hosts):
                        raise ToolError(
                            f"{address[:200]} leads on to {_shown_url(url)}, on a host that neither the user nor the "
                            "settings have named. It was not followed; fetching it needs approval."
                        )
            except (ClientError, OSError, ValueError) as error:
                # TimeoutError, an OSError, is only that of a connection here: the whole's comes as a cancellation.
                if refused:
                    raise ToolError(
                        f"{url.host} is not on the public internet ({refused[0]}), and such hosts are not fetched "
                        "unless they are listed in allow_private_hosts."
                    ) from None
                raise ToolError(f"{_shown_url(url)} could not be fetched: {_reason(error)}") from None
        raise ToolError(f"{address[:200]} redirects more than {MAX_REDIRECTS} times.")

    def _open_session(self, url: "URL", refused: list[str]) -> "ClientSession":
        """A session for one request, whose sockets only go where they may."""
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        allowed = _plain_host(url.host or "") in self._allowed
        connector = TCPConnector(
            socket_factory=_any_socket if allowed else _public_socket(refused), use_dns_cache=False, force_close=True
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept": "text/html, text/*;q=0.9, */*;q=0.5"},
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            trust_env=False,
        )

    async def _read(self, answer: "ClientResponse", url: "URL") -> FetchedPage:
        kind = answer.content_type if "Content-Type" in answer.headers else "text/plain"
        if not re.fullmatch(_TEXTUAL, kind) and kind not in _HTML:
            raise ToolError(f"{_shown_url(url)} is {kind}; only text, HTML, JSON and XML are fetched.")
        body = bytearray()
        whole = True
        async for chunk in answer.content.iter_chunked(65_536):
            body += chunk
            if len(body) > self._max_bytes:
                del body[self._max_bytes :]
                whole = False
                break
        if b"\0" in body[:8192] and answer.charset is None:
            raise ToolError(f"{_shown_url(url)} is not text, although it says so.")
        text = await in_thread(lambda stop: decode_page(bytes(body), answer.charset, stop))
        if kind in _HTML:
            text = await self._readable(text, url)
        return FetchedPage(_shown_url(url), answer.status, answer.reason or "", text, whole=whole)

    async def _readable(self, html: str, url: "URL") -> str:
        ran = await run_subprogram(
            _HTML_TEXT,
            str(url),
            given=html.encode("utf-8", "replace"),
            seconds=self._readable_seconds,
            max_output_bytes=2 * self._max_bytes,
        )
        return ran.output if ran.code == 0 else f"[this page could not be made readable: this is its HTML]\n\n{html}"


def _parse_url(address: str) -> "URL":
    from yarl import URL

    try:
        return URL(address.strip())
    except ValueError as error:
        raise ToolError(f"{address[:200]!r} is not a URL: {error}") from None


def _check_url(url: "URL") -> None:
    if url.scheme not in ("http", "https") or not url.host:
        raise ToolError(f"Only http:// and https:// URLs are fetched, not {_shown_url(url)!r}.")
    if url.user is not None or url.password is not None:
        raise ToolError("URLs with a user name or password in them are not fetched.")


def _public_socket(refused: list[str]) -> Callable[[AddressInfo], socket.socket]:
    """Makes sockets, but none to an address that is not public."""

    def make(info: AddressInfo) -> socket.socket:
        address = str(info[4][0])
        if not is_public(address):
            refused.append(address)
            raise PermissionError(f"{address} is not a public address")
        return _any_socket(info)

    return make


def _any_socket(info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)


def _plain_host(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _shown_url(url: "URL") -> str:
    return str(url.with_user(None) if url.user and url.host else url)[:500]


def _reason(error: Exception) -> str:
    from aiohttp import ClientConnectorDNSError

    if isinstance(error, ClientConnectorDNSError):
        return "there is no such host."
    if isinstance(error, TimeoutError):
        return "it does not answer."
    return (str(error) or type(error).__name__)[:300]
