"""What can be run, and what it sees of its run (A).

A `ServedAgent` is handed a run, says in it what happens, and returns how it ended: the built-in loop, and agents of
one's own. A `RunHandle` is implemented by `runs.live`, and by nothing else: where an agent says what happens, and what
reaches it from outside (R12, R13). Sits on the vocabulary and the request.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holdfast.agents.request import RunRequest
from holdfast.agents.resume_point import ResumePoint
from holdfast.config import LimitSettings, OnRestart
from holdfast.events import ApprovalAnswered, Event
from holdfast.ids import CallId
from holdfast.messages import Message, UserMessage
from holdfast.outcomes import Outcome
from holdfast.sinks import EventSink
from holdfast.upstream.port import ModelCall, Options


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


class ServedAgent(Protocol):
    """Something that a request can name as its model, and that executes runs."""

    @property
    def name(self) -> str:
        """What requests, /v1/models and the records of its runs call it."""
        ...

    @property
    def model(self) -> str:
        """What is behind it: `provider/model`; of an agent of one's own, its name."""
        ...

    @property
    def limits(self) -> LimitSettings:
        """What its runs may use."""
        ...

    @property
    def on_restart(self) -> OnRestart:
        """R15: what becomes of its detached runs when their server is gone, where a request does not say."""
        ...

    @property
    def can_resume(self) -> bool:
        """Can a request ask for its runs to go on after a restart?"""
        ...

    def with_defaults(self, options: Options) -> Options:
        """How it answers: as the request says, else as its settings do."""
        ...

    def preview(self, request: RunRequest) -> ModelCall:
        """What a model would be asked first, were this request run now; nothing is."""
        ...

    async def execute(
        self, request: RunRequest, history: Sequence[Message], run: RunHandle, point: ResumePoint
    ) -> Outcome:
        """Do it: from its beginning, or from where it was when its server was gone (R15).

        Being stopped is a cancellation.
        """
        ...
