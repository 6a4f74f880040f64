"""Two agents, of which one asks the other: the second's run is a run of its own."""

from collections.abc import AsyncIterator

import holdfast


async def library(run: holdfast.Run) -> AsyncIterator[str]:
    """Knows which books there are."""
    async with run.tool("catalogue", {"query": run.input}) as call:
        call.output = ["The Art of Tea", "Tea in Forty Cups"]
    yield "There are: " + ", ".join(call.output)


guide = holdfast.Agent(
    prompt="You recommend books. Ask the library what it has.",
    tools=["agent:library"],
)
