"""Models that cannot stream are asked for a plain answer instead (U10).

Wraps the HTTP upstream, below retries: switching is no failure and uses up no try. Opens no connection itself.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from holdfast.errors import StreamingUnsupportedError
from holdfast.events import Delta, UpstreamRetried
from holdfast.upstream.port import ModelCall, Upstream


class PlainUpstream(Upstream, Protocol):
    """An upstream that can also be asked without streaming."""

    def plain(self, call: ModelCall) -> AsyncGenerator[Sequence[Delta], None]:
        """Ask for a plain answer, and yield it as one batch.

        Raises:
            UpstreamError: the call failed.
        """
        ...


class PlainFallbackUpstream:
    """Streams until a model says that it cannot; from then on, for the rest of the process, asks it plainly."""

    def __init__(self, inner: PlainUpstream) -> None:
        self._inner = inner
        self._unable: set[str] = set()

    async def stream(self, call: ModelCall) -> AsyncGenerator[Sequence[Delta], None]:
        """Ask as the model can answer."""
        if call.model not in self._unable:
            try:
                async with aclosing(self._inner.stream(call)) as batches:
                    async for batch in batches:
                        yield batch
                return
            except StreamingUnsupportedError as error:
                self._unable.add(call.model)
                message = error.message
            yield [UpstreamRetried(model=call.model, attempt=1, error=message, wait_seconds=0.0)]
        async with aclosing(self._inner.plain(call)) as batches:
            async for batch in batches:
                yield batch

    async def aclose(self) -> None:
        """Close the inner one."""
        await self._inner.aclose()
