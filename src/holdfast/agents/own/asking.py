"""What an agent of one's own asks whoever follows its run (R12): one thing at a time, and nothing once it is over.

Above: `run`, `generator`. Sits on the writer and the agents' port.
"""

import asyncio

from holdfast.agents.own.writer import RunWriter
from holdfast.agents.port import RunHandle
from holdfast.events import ApprovalAnswered, ApprovalAsked
from holdfast.ids import make_call_id


class Asking:
    """Asks, for one run."""

    def __init__(self, handle: RunHandle, writer: RunWriter, *, can_ask: bool, seconds: float) -> None:
        self._handle = handle
        self._writer = writer
        self._can_ask = can_ask
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._asking: asyncio.Task[ApprovalAnswered] | None = None

    async def ask(self, name: str, arguments: str) -> bool:
        """May it be done? False: no, nobody said so in time, or there is nobody to ask."""
        async with self._turn:
            call = make_call_id()
            self._writer.tell(ApprovalAsked(call_id=call, name=name, arguments=arguments, seconds=self._seconds))
            if not self._can_ask:
                self._writer.tell(ApprovalAnswered(call_id=call, approved=False, by="nobody"))
                return False
            loop = asyncio.get_running_loop()
            self._asking = loop.create_task(self._handle.ask(call, self._seconds))
            return (await self._asking).approved

    async def aclose(self) -> None:
        """Whoever still asks, in a task that the agent has left behind, is told no more: the run ends now."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])
