"""What is pushed to on a token's way from the provider's socket to the client's: a shape before the log, one behind it.

A sink is called in the very step in which something came, so that no task is woken for a token; it waits for nothing.
Who is pushed to and cannot take more says so, and is drained before the next push. docs/architecture.md has the table
of all sinks on the way. Vocabulary: imports only vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast.events import Batch, Delta, Event

T_contra = TypeVar("T_contra", contravariant=True)


class Sink(Protocol[T_contra]):
    """Takes what comes, at its own pace."""

    def push(self, item: T_contra, /) -> bool:
        """Take what is new. Must not wait. What it raises ends the source.

        Returns:
            False: no more before `drain` has been awaited.
        """
        ...

    async def drain(self) -> None:
        """Wait until more may be pushed. Raises as `push`."""
        ...


DeltaSink = Sink[Sequence[Delta]]
"""Who hears a model: all that one socket read brought, in one push."""
EventSink = Sink[Sequence[Event]]
"""Where a run says what happens; drained, all of it is durable."""
ByteSink = Sink[bytes]
"""A body, on its way in or out."""


class LogReader(Protocol):
    """Somebody who is pushed every batch of a log, in the step in which it became durable.

    No log waits for its readers, so there is nothing to drain. Neither call raises.
    """

    def push(self, batch: Batch, /) -> None:
        """This is new."""
        ...

    def abandon(self) -> None:
        """There will be no log."""
        ...


class BatchSink(Protocol):
    """Who shows a log to a client: pushed what becomes durable instead of being woken for it.

    One that falls behind is pushed no more, and reads on by itself.
    """

    def push(self, batches: list[Batch], /) -> bool:
        """This is durable now. Must not wait. False: no more, I fall behind."""
        ...

    def halted(self, error: Exception | None) -> None:
        """Nothing more is pushed: the run is over, `push` wanted no more, or it has raised this."""
        ...


async def send(sink: Sink[T_contra], item: T_contra) -> None:
    """Push something, and wait until more may be pushed."""
    if not sink.push(item):
        await sink.drain()
