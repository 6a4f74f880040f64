"""What makes a wire format of a run's log: every surface that streams has one. Knows no request and no connection."""

from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.events import Batch

KEEPALIVE: Final = b": keepalive\n"
"""One newline: some clients take a blank line after a comment for an empty event."""


class StreamEncoder(Protocol):
    """One wire format of one run's log. Made without a request; does no I/O."""

    def begin(self) -> bytes:
        """What goes out before anything has happened."""
        ...

    def encode(self, batches: list[Batch]) -> bytes:
        """What these events look like; empty when they have no look. The end of the run ends the stream."""
        ...

    def keepalive(self) -> bytes:
        """What shows that the connection lives; empty: nothing is due yet."""
        ...

    def fail(self, error: HoldfastError) -> bytes:
        """The log cannot be read further: the end of the stream, and not a happy one."""
        ...
