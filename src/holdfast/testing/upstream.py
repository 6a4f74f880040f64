"""A model in memory that says what it was told to say, batch by batch.

Implements `Upstream` beside the HTTP one; sits on the port and the vocabulary, and opens no connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence

from holdfast.chaos.reply import ScriptedCall
from holdfast.errors import UpstreamError
from holdfast.events import Answered, ArgumentsAdded, Delta, TextAdded, ToolCallBegan
from holdfast.ids import CallId
from holdfast.messages import Usage
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.port import ModelCall, Upstream

Step = Sequence[Delta] | UpstreamError | asyncio.Event | float
"""A batch to say, an error to raise, an event to wait for, or seconds to wait. A turn that ends without
`Answered` or an error just ends, as no real upstream does."""
Turn = Iterable[Step] | UpstreamError


_FEW = Usage(input_tokens=3, output_tokens=2)


def says(text: str, *, usage: Usage = _FEW, model: str = "scripted") -> list[Step]:
    """A turn of plain text, a word a batch."""
    words: list[Step] = [[TextAdded(text=word)] for word in text.replace(" ", " \0").split("\0") if word]
    return [*words, [Answered(finish="stop", model=model, usage=usage)]]


def calls(*wanted: ScriptedCall, text: str = "", usage: Usage = _FEW, model: str = "scripted") -> list[Step]:
    """A turn that calls tools: `calls(tool_call("weather", city="Oslo"))`."""
    said: list[Delta] = [TextAdded(text=text)] if text else []
    for index, call in enumerate(wanted):
        said.append(ToolCallBegan(index=index, call_id=CallId(call.id or f"call_{index}"), name=call.name))
        said.append(ArgumentsAdded(index=index, text=call.arguments))
    return [said, [Answered(finish="tool_calls", model=model, usage=usage)]]


class ScriptedUpstream:
    """Plays one turn per call. Leaving `async with` complains about turns that nobody asked for."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = deque(turns)
        self.calls: list[ModelCall] = []
        """What was asked, in order."""
        self.open_streams = 0
        self.closed_early = 0
        """Streams that were closed before their turn was over."""
        self.is_closed = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "ScriptedUpstream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.aclose()
        if kind is None:
            self.check_finished()

    @property
    def leftover(self) -> int:
        """How many turns nobody has asked for."""
        return len(self._turns)

    def check_finished(self) -> None:
        """Raise AssertionError when turns are left over or streams still open."""
        assert not self._turns, f"The script has {len(self._turns)} turn(s) left that nobody asked for."
        assert not self.open_streams, f"{self.open_streams} stream(s) were never closed."

    def add(self, *turns: Turn) -> None:
        """Play these next."""
        self._turns.extend(turns)

    async def asked(self, count: int = 1, seconds: float = 5.0) -> ModelCall:
        """Wait until so many calls have come; the last of them.

        Raises:
            TimeoutError: they have not.
        """
        async with asyncio.timeout(seconds):
            while len(self.calls) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.calls[count - 1]

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        """Play the next turn."""
        self.calls.append(call)
        self._changed.set()
        assert self._turns, f"The script has no turn for call {len(self.calls)} ({call.model})."
        turn = self._turns.popleft()
        if isinstance(turn, UpstreamError):
            raise turn
        self.open_streams += 1
        whole = False
        try:
            for step in turn:
                match step:
                    case UpstreamError():
                        whole = True
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case float() | int():
                        await asyncio.sleep(step)
                    case _:
                        await send(sink, step)
            whole = True
        finally:
            self.open_streams -= 1
            self.closed_early += not whole
            self._changed.set()

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


class _Reader:
    """A sink that hears a batch only when somebody reads it."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[Sequence[Delta] | None] = asyncio.Queue()

    def push(self, deltas: Sequence[Delta]) -> bool:
        self.batches.put_nowait(deltas)
        return False

    async def drain(self) -> None:
        await self.batches.join()


async def stream(upstream: Upstream, call: ModelCall) -> AsyncGenerator[Sequence[Delta], None]:
    """An answer as a stream of batches, for whoever wants to look between two of them; closing it ends the call."""
    reader = _Reader()

    async def ask() -> None:
        try:
            await upstream.ask(call, reader)
        finally:
            reader.batches.put_nowait(None)

    asking = asyncio.get_running_loop().create_task(ask())
    try:
        while (batch := await reader.batches.get()) is not None:
            yield batch
            reader.batches.task_done()
        await asking
    finally:
        asking.cancel()
        await asyncio.wait([asking])
