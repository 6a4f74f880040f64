"""Reading a pipe without blocking the event loop, at a pace the server can keep. Below the tool sets; knows no tool."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

FAST_BYTES: Final = 8_000_000
"""Beyond this a pipe is read slowly, so that a process that prints for ever does not keep the server busy."""


async def read_pipe(descriptor: int, take: Callable[[bytes], None]) -> None:
    """Hand on what comes until the other end is closed. The descriptor must be non-blocking; it is left open.

    A pipe of one's own, rather than asyncio's: with those, waiting for a process also waits for whatever it has left in
    the background with the pipe in its hands.
    """
    read = 0
    while True:
        try:
            data = os.read(descriptor, 65_536)
        except BlockingIOError:
            await _until_readable(descriptor)
            continue
        if not data:
            return
        read += len(data)
        take(data)
        await asyncio.sleep(0 if read < FAST_BYTES else 0.01)


async def _until_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
