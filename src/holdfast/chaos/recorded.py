"""What was asked of a scripted provider, kept so that a test can look at it and wait for what becomes of it.

`provider` sits above: it makes one of every request and notes its end. Opens no connection.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.config import WireProtocol

_PATHS: Final[dict[str, WireProtocol]] = {
    "/chat/completions": "chat_completions",
    "/responses": "responses",
    "/messages": "anthropic_messages",
    "/messages/count_tokens": "anthropic_messages",
}


class RecordedRequest:
    """A request as it came in, and what became of its connection. Times are `time.monotonic()`."""

    def __init__(
        self, method: str, path: str, headers: dict[str, str], raw: bytes, *, on_release: Callable[[], None]
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        """Names in lower case."""
        self.raw = raw
        self.body: Any = _parse_json(raw)
        self.received_at = time.monotonic()
        self.answered_at: float | None = None
        """When the whole answer had been written; None: it was not, or not yet."""
        self.closed_at: float | None = None
        """When the connection was gone, whoever closed it."""
        self.closed_by_peer = False
        self._closed = asyncio.Event()
        self._release = on_release

    @property
    def protocol(self) -> WireProtocol | None:
        """Which protocol the path belongs to."""
        path = self.path.partition("?")[0]
        return next((protocol for suffix, protocol in _PATHS.items() if path.endswith(suffix)), None)

    @property
    def model(self) -> str:
        """The model asked for."""
        return str(self.body.get("model", "")) if isinstance(self.body, dict) else ""

    @property
    def streams(self) -> bool:
        """Did it ask for a stream?"""
        return isinstance(self.body, dict) and self.body.get("stream") is True

    @property
    def counts(self) -> bool:
        """Does it only ask how many tokens it has?"""
        return self.path.partition("?")[0].endswith("/count_tokens")

    @property
    def prompt(self) -> str:
        """The text of the last user message; empty when something else came last, such as a tool's result."""
        said = self.body.get("messages", self.body.get("input", "")) if isinstance(self.body, dict) else ""
        if isinstance(said, str):
            return said
        last = said[-1] if isinstance(said, list) and said else {}
        if not isinstance(last, dict) or last.get("role") != "user":
            return ""
        content = last.get("content", "")
        parts = content if isinstance(content, list) else [{"text": content}]
        return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)

    def release(self) -> None:
        """Let an answer go on that pauses at its `hold_after`."""
        self._release()

    async def closed(self, seconds: float = 5.0) -> float:
        """Wait until the connection is gone; when that was.

        Raises:
            TimeoutError: it is still open.
        """
        async with asyncio.timeout(seconds):
            await self._closed.wait()
        assert self.closed_at is not None
        return self.closed_at

    def note_closed(self, *, by_peer: bool) -> None:
        """The connection is gone. The provider calls it."""
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            self.closed_by_peer = by_peer
            self._closed.set()


def _parse_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return None
