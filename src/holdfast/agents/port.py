"""What whatever executes a run sees of it: where it says what happens, and what reaches it from outside (R12, R13).

Implemented by `runs.live`, and by nothing else; the loop is handed one. Sits on the vocabulary and the request.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.events import ApprovalAnswered, Event
from holdfast.ids import CallId
from holdfast.messages import UserMessage
from holdfast.sinks import EventSink


class RunHandle(EventSink, Protocol):
    """A run that is going on, for its agent. It is the sink of its events."""

    def push(self, events: Sequence[Event], /) -> bool:
        """This happened. Called for every token, in the step in which it came.

        Returns:
            False: the run is too far ahead of what is durable, and should drain.

        Raises:
            StoreError: it cannot be recorded, and the run must end.
        """
        ...

    async def drain(self) -> None:
        """Wait until all that was pushed is durable. Raises as `push`."""
        ...

    @property
    def has_messages(self) -> bool:
        """Has somebody said something to the run that `take_messages` has not given yet?"""
        ...

    def take_messages(self) -> Sequence[UserMessage]:
        """What was said to the run since the last look, and stands in the log: for the turn that begins now."""
        ...

    async def ask(self, call: CallId, seconds: float) -> ApprovalAnswered:
        """Wait until somebody approves a call, or denies it, or the time for it is over. The answer is in the log."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """While it waits for something under a time limit of its own, the idle limit does not apply."""
        ...
