"""An agent is an async generator: what it yields is the answer."""

import asyncio
from collections.abc import AsyncIterator

import holdfast


async def agent(run: holdfast.Run) -> AsyncIterator[str]:
    for word in run.input.split():
        yield word.upper() + " "
        await asyncio.sleep(0.05)
    run.usage(output=len(run.input.split()))
