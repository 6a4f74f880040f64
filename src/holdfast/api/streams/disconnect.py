"""Noticing that a client has left while its answer is being made (R3). Sits on ASGI's `receive`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive


class ClientLeftError(Exception):
    """The client went away; nobody reads an answer."""


@asynccontextmanager
async def until_left(receive: Receive, on_left: Callable[[], None]) -> AsyncIterator[None]:
    """Run the block until the client leaves; then `on_left` is called, and ClientLeftError comes out of the block.

    The request's body must have been read: what `receive` then tells is the disconnect.
    """
    left = False
    try:
        # Never expires by itself: it is how the block is cancelled from outside, and only the block.
        async with asyncio.timeout(None) as scope:

            async def watch() -> None:
                nonlocal left
                while (await receive())["type"] == "http.request":
                    pass
                left = True
                on_left()
                scope.reschedule(0)

            watcher = asyncio.get_running_loop().create_task(watch(), name="disconnect")
            try:
                yield
            finally:
                watcher.cancel()
                await asyncio.wait([watcher])
            if not watcher.cancelled():
                watcher.result()
    except TimeoutError:
        if left:
            raise ClientLeftError from None
        raise
