"""Whatever takes room in the store is asked whether there is some (S18). Only there where the store has a limit.

What gives room back, or only ends something, always passes. A body of which nobody said how long it is is counted as it
comes, and a WebSocket asks for every turn (`ROOM`). Sits on the store's room and problems.
"""

from contextlib import AsyncExitStack
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api.callers import ROOM
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import problem_of
from holdfast.api.requests.headers import headers_of
from holdfast.errors import StoreError, StoreFullError
from holdfast.store.room import StoreRoom

_ADDING: Final = frozenset({"POST", "PATCH", "PUT"})
_ADDS_NOTHING: Final = ("/stop", "/cancel", "/approval", "/count_tokens")


class RoomMiddleware:
    """Pure ASGI."""

    def __init__(self, app: ASGIApp, room: StoreRoom) -> None:
        self._app = app
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, or not."""
        scope[ROOM] = self._room
        if not _takes_room(scope):
            await self._app(scope, receive, send)
            return
        length = headers_of(scope).get("content-length", "")
        async with AsyncExitStack() as stack:

            async def receive_counted() -> Message:
                """What comes, if there is room for it; raises as `StoreRoom.taken`."""
                message = await receive()
                if body := message.get("body", b""):
                    await stack.enter_async_context(self._room.taken_by(len(body), least_bytes=0))
                return message

            try:
                # What is larger than a body may be, or no number, is turned away by whoever reads it.
                request_bytes = int(length[:12]) if length.isdecimal() else 0
                await stack.enter_async_context(self._room.taken_by(request_bytes))
            except (StoreFullError, StoreError) as error:
                await refuse(problem_of(error), scope, receive, send)
                return
            await self._app(scope, receive if length else receive_counted, send)


def _takes_room(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] not in _ADDING:
        return False
    path: str = scope["path"]
    return path.startswith("/v1/") and not path.endswith(_ADDS_NOTHING)
