"""Bodies that a task sends, piece by piece, because only it may wait for the connection.

What is pushed is kept until `deliver` has sent it. Below: one kind of connection each, `AsgiBody` and `WebSocketBody`.
"""

import asyncio
from typing import Final

from starlette.types import Send
from starlette.websockets import WebSocket

from holdfast.api.streams.body import BodyOwner

MAX_BUFFERED_BYTES: Final = 64 * 1024
"""What may wait for a client before its stream stops reading the log."""


class AbortedError(Exception):
    """The answer cannot be brought to its end: whoever serves it has to break the connection off."""


class BufferedBody:
    """A body on its way to a task. The task that calls `deliver` owns it."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._is_ended = self._is_aborted = False
        self._owner: BodyOwner | None = None
        self._wanted: asyncio.Future[None] | None = None
        self._taken: asyncio.Future[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Is there room for more?"""
        return len(self._pending) < MAX_BUFFERED_BYTES

    def start(self, owner: BodyOwner, first: bytes) -> bool:
        """Begin."""
        self._owner = owner
        if first:
            self.push(first)
        return True

    def push(self, data: bytes, /) -> bool:
        """Have a part sent."""
        self._pending += data
        _resolve(self._wanted)
        return self.is_ready

    def end(self, data: bytes) -> None:
        """Have the last of it sent."""
        self._is_ended = True
        self.push(data)

    def abort(self) -> None:
        """Let `deliver` fail."""
        self._is_aborted = True
        _resolve(self._wanted)

    async def drain(self) -> None:
        """Wait until there is room for more."""
        while not self.is_ready:
            self._taken = asyncio.get_running_loop().create_future()
            await self._taken

    async def deliver(self) -> None:
        """Send what is pushed, to the end; whatever ends this tells the owner that nobody reads any more.

        Raises:
            AbortedError: the answer was given up in the middle.
        """
        try:
            while not self._is_aborted:
                if not self._pending and not self._is_ended:
                    self._wanted = asyncio.get_running_loop().create_future()
                    await self._wanted
                    continue
                data, is_last = bytes(self._pending), self._is_ended
                self._pending.clear()
                await self._send(data, is_last=is_last)
                _resolve(self._taken)
                if is_last:
                    return
            raise AbortedError
        finally:
            if self._owner is not None:
                self._owner.lost()

    async def _send(self, data: bytes, *, is_last: bool) -> None:
        raise NotImplementedError


class AsgiBody(BufferedBody):
    """The rest of an HTTP answer, as ASGI has it."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._asgi_send = send

    async def _send(self, data: bytes, *, is_last: bool) -> None:
        await self._asgi_send({"type": "http.response.body", "body": data, "more_body": not is_last})


class WebSocketBody(BufferedBody):
    """Messages, one for each line: JSON has no line breaks of its own. The connection outlives its end."""

    def __init__(self, websocket: WebSocket) -> None:
        super().__init__()
        self._websocket = websocket

    async def _send(self, data: bytes, *, is_last: bool) -> None:
        for line in data.split(b"\n"):
            if line:
                await self._websocket.send({"type": "websocket.send", "text": line.decode()})


def _resolve(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
