"""Fetching pages of the public internet, as text: the tool, and how a long page is shown in parts.

Above: the toolbox. Below: fetching.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta

from holdfast.errors import ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import Arguments, make_spec, parse_arguments
from holdfast.tools.output import cut_line
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.web.fetching import FetchedPage, PageFetcher

FETCH_SECONDS: Final = 30.0
READABLE_SECONDS: Final = 10.0
"""For making text of a page; some are made to be slow."""
MAX_BYTES: Final = 2_000_000


class FetchUrl(Arguments, frozen=True, kw_only=True):
    """Fetch a page of the internet and read it as text. Long pages come in parts: the last line says how to read on."""

    url: Annotated[str, Meta(min_length=1, max_length=8_000, description="http:// or https://")]
    offset: Annotated[int, Meta(ge=0, description="The character to begin at.")] = 0


_KINDS: Final = {"fetch_url": FetchUrl}


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
        self._fetcher = PageFetcher(
            allow_private_hosts=allow_private_hosts, max_bytes=max_bytes, readable_seconds=readable_seconds
        )
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._page_bytes = max(max_output_bytes - 1_000, 500)
        """Room is left for the lines around the text."""
        self._specs = (make_spec("fetch_url", FetchUrl, repeatable=True),)

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
                page = await self._fetcher.fetch(asked.url, context.hosts)
        except TimeoutError:
            raise ToolError(f"{asked.url[:200]} did not answer within {self._seconds:g} seconds.") from None
        return ToolResult(output=self._shown(page, asked.offset), failed=page.status >= 400)

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    def _shown(self, page: FetchedPage, offset: int) -> str:
        if offset and offset >= len(page.text):
            raise ToolError(f"The page has only {len(page.text):,} characters.")
        part = page.text[offset : offset + self._page_bytes]
        part = part.encode("utf-8", "replace")[: self._page_bytes].decode("utf-8", "ignore")
        end = offset + len(part)
        lines = [
            page.url + ("" if page.status == 200 else f" (HTTP {page.status} {page.reason})"),
            "",
            part,
        ]
        if offset or end < len(page.text):
            onward = f"; pass offset={end} to read on" if end < len(page.text) else ""
            lines.append(f"[characters {offset:,}-{end:,} of {len(page.text):,}{onward}]")
        if not page.whole:
            lines.append(f"[the page is longer: only its first {self._max_bytes:,} bytes were read]")
        return "\n".join(lines)
