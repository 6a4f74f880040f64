"""Fetching pages of the public internet, as text.

The address that is checked is the address that is connected to: the check sits where the socket is made, so neither a
spelling, a redirect nor a name that changes its mind gets around it. Above addresses and readable, below the toolbox.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final

import aiohttp
from msgspec import Meta
from yarl import URL

from holdfast import __version__
from holdfast.errors import ToolError
from holdfast.messages import ToolSpec
from holdfast.tools import readable
from holdfast.tools.addresses import is_public
from holdfast.tools.arguments import Arguments, make_spec, parse_arguments
from holdfast.tools.output import cut_line
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.programs import run_program

FETCH_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
READABLE_SECONDS: Final = 10.0
"""For making text of a page; some are made to be slow."""
MAX_BYTES: Final = 2_000_000
MAX_REDIRECTS: Final = 5
USER_AGENT: Final = f"Holdfast/{__version__} (fetch_url)"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TEXTUAL: Final = re.compile(
    r"text/.*|application/(.*[+.-])?(json|xml|javascript|ecmascript|yaml|toml|x-ndjson|jsonl?)"
)
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_META_CHARSET: Final = re.compile(rb"""<meta[^>]{0,200}charset=["']?([\w-]{1,40})""", re.IGNORECASE)

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]


class FetchUrl(Arguments, frozen=True, kw_only=True):
    """Fetch a page of the internet and read it as text. Long pages come in parts: the last line says how to read on."""

    url: Annotated[str, Meta(min_length=1, max_length=8_000, description="http:// or https://")]
    offset: Annotated[int, Meta(ge=0, description="The character to begin at.")] = 0


_KINDS: Final = {"fetch_url": FetchUrl}


class _Page:
    """What came back."""

    def __init__(self, url: URL, status: int, reason: str, text: str, *, whole: bool) -> None:
        self.url = url
        self.status = status
        self.reason = reason
        self.text = text
        self.whole = whole


class WebTools:
    """The tool that fetches pages. No cookies, no proxies from the environment, nothing kept between calls."""

    def __init__(
        self,
        *,
        allow_private_hosts: Iterable[str] = (),
        max_output_bytes: int = 50_000,
        max_bytes: int = MAX_BYTES,
        seconds: float = FETCH_SECONDS,
        readable_seconds: float = READABLE_SECONDS,
    ) -> None:
        self._allowed = frozenset(_plain_host(host) for host in allow_private_hosts)
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._readable_seconds = readable_seconds
        self._page_bytes = max(max_output_bytes - 1_000, 500)
        """Room is left for the lines around the text."""
        self._specs = (make_spec("fetch_url", FetchUrl),)

    def specs(self) -> Sequence[ToolSpec]:
        """One tool."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """`fetch_url example.org/page`: without what could be secret in a URL."""
        bare = re.sub(r"^\w+://([^/?#]*@)?", "", str(arguments.get("url", "")))
        return cut_line(f"{name} {re.split('[?#]', bare)[0]}", 80)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Fetch a page.

        Raises:
            ToolError: it cannot be reached, may not be, or is not text.
        """
        asked = parse_arguments(_KINDS, name, arguments)
        try:
            async with asyncio.timeout(self._seconds):
                page = await self._fetch(asked.url)
        except TimeoutError:
            raise ToolError(f"{asked.url[:200]} did not answer within {self._seconds:g} seconds.") from None
        return ToolResult(output=self._shown(page, asked.offset), failed=page.status >= 400)

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    async def _fetch(self, address: str) -> _Page:
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
            except (aiohttp.ClientError, OSError, ValueError) as error:
                # TimeoutError, an OSError, is only that of a connection here: the whole's comes as a cancellation.
                if refused:
                    raise ToolError(
                        f"{url.host} is not on the public internet ({refused[0]}), and such hosts are not fetched "
                        "unless they are listed in allow_private_hosts."
                    ) from None
                raise ToolError(f"{_shown_url(url)} could not be fetched: {_reason(error)}") from None
        raise ToolError(f"{address[:200]} redirects more than {MAX_REDIRECTS} times.")

    def _open_session(self, url: URL, refused: list[str]) -> aiohttp.ClientSession:
        """A session for one request, whose sockets only go where they may."""
        allowed = _plain_host(url.host or "") in self._allowed
        connector = aiohttp.TCPConnector(
            socket_factory=_any_socket if allowed else _public_socket(refused), use_dns_cache=False, force_close=True
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept": "text/html, text/*;q=0.9, */*;q=0.5"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            trust_env=False,
        )

    async def _read(self, answer: aiohttp.ClientResponse, url: URL) -> _Page:
        kind = answer.content_type if "Content-Type" in answer.headers else "text/plain"
        if not _TEXTUAL.fullmatch(kind) and kind not in _HTML:
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
        text = _decoded(bytes(body), answer.charset)
        if kind in _HTML:
            text = await self._readable(text, url)
        return _Page(url, answer.status, answer.reason or "", text, whole=whole)

    async def _readable(self, html: str, url: URL) -> str:
        ran = await run_program(
            readable.__file__,
            str(url),
            given=html.encode("utf-8", "replace"),
            seconds=self._readable_seconds,
            max_output_bytes=2 * self._max_bytes,
        )
        return ran.output if ran.code == 0 else f"[this page could not be made readable: this is its HTML]\n\n{html}"

    def _shown(self, page: _Page, offset: int) -> str:
        if offset and offset >= len(page.text):
            raise ToolError(f"The page has only {len(page.text):,} characters.")
        part = page.text[offset : offset + self._page_bytes]
        part = part.encode("utf-8", "replace")[: self._page_bytes].decode("utf-8", "ignore")
        end = offset + len(part)
        lines = [
            _shown_url(page.url) + ("" if page.status == 200 else f" (HTTP {page.status} {page.reason})"),
            "",
            part,
        ]
        if offset or end < len(page.text):
            onward = f"; pass offset={end} to read on" if end < len(page.text) else ""
            lines.append(f"[characters {offset:,}-{end:,} of {len(page.text):,}{onward}]")
        if not page.whole:
            lines.append(f"[the page is longer: only its first {self._max_bytes:,} bytes were read]")
        return "\n".join(lines)


def _parse_url(address: str) -> URL:
    try:
        return URL(address.strip())
    except ValueError as error:
        raise ToolError(f"{address[:200]!r} is not a URL: {error}") from None


def _check_url(url: URL) -> None:
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


def _shown_url(url: URL) -> str:
    return str(url.with_user(None) if url.user and url.host else url)[:500]


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "there is no such host."
    if isinstance(error, TimeoutError):
        return "it does not answer."
    return (str(error) or type(error).__name__)[:300]


def _decoded(body: bytes, charset: str | None) -> str:
    declared = _META_CHARSET.search(body[:2048])
    name = charset or (declared.group(1).decode("ascii") if declared else "utf-8-sig")
    try:
        return body.decode(name, "replace")
    except (LookupError, ValueError):  # no such encoding, or one that is not for text
        return body.decode("utf-8", "replace")
