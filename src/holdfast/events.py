"""What happens in a run. The log is a numbered list of these and nothing else (R1).

The first group comes straight from a model's stream (`Delta`); the run adds the rest. `Batch` is the unit in which
events are stored, woken for and sent: all that one socket read brought. Vocabulary: imports only vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import Executed, Finish, Metadata, Usage, UserMessage, Value
from holdfast.outcomes import Outcome

# From a model's stream.


class TextAdded(Value, frozen=True, kw_only=True, tag="text.added", gc=False):
    """The model said more. The hot event: one per token."""

    text: str


class ReasoningAdded(Value, frozen=True, kw_only=True, tag="reasoning.added", gc=False):
    """The model thought more. A summary follows a non-summary as a part of its own."""

    text: str
    summary: bool = False


class ReasoningSigned(Value, frozen=True, kw_only=True, tag="reasoning.signed"):
    """The current reasoning part is whole, and this goes back with it on the next turn (U3)."""

    metadata: Metadata


class ToolCallBegan(Value, frozen=True, kw_only=True, tag="tool_call.began"):
    """The model began to write a tool call; its arguments follow."""

    index: int
    """Which call of this turn: 0, 1, …; the codec numbers them when the provider does not."""
    call_id: CallId
    name: str


class ArgumentsAdded(Value, frozen=True, kw_only=True, tag="tool_call.arguments_added", gc=False):
    """More of a call's arguments."""

    index: int
    text: str = ""
    """In the log. Whoever reads a run is told `bytes` alone: nobody is shown half a call (U13)."""
    bytes: int = 0


class ToolCallAnnotated(Value, frozen=True, kw_only=True, tag="tool_call.annotated"):
    """Provider metadata of a call, sent back with it (U3)."""

    index: int
    metadata: Metadata


class UpstreamRetried(Value, frozen=True, kw_only=True, tag="upstream.retried"):
    """A try failed before the first delta and is made again (U8-U10)."""

    model: str
    attempt: int
    """The try that failed, from 1."""
    error: str
    wait_seconds: float


class FellBack(Value, frozen=True, kw_only=True, tag="upstream.fell_back"):
    """A model's tries are exhausted, and the next one is asked (U15)."""

    from_model: str
    to_model: str
    error: str


class Answered(Value, frozen=True, kw_only=True, tag="upstream.answered"):
    """The provider said how the turn ended. Always the last delta; a stream without it was cut off."""

    finish: Finish
    model: str
    """Which model answered, as `provider/model` where the provider is known."""
    stop_sequence: str | None = None
    """The one of the caller's sequences that ended it, where the provider says which."""
    usage: Usage = Usage()


Delta = (
    TextAdded
    | ReasoningAdded
    | ReasoningSigned
    | ToolCallBegan
    | ArgumentsAdded
    | ToolCallAnnotated
    | UpstreamRetried
    | FellBack
    | Answered
)
CONTENT_DELTAS = (TextAdded, ReasoningAdded, ToolCallBegan, ArgumentsAdded)
"""Deltas a user can see. After one of these nothing is silently retried (U12)."""


# From the run.


class RunStarted(Value, frozen=True, kw_only=True, tag="run.started"):
    """Event 0."""

    run: RunId
    session: SessionId
    model: str


class TurnStarted(Value, frozen=True, kw_only=True, tag="turn.started"):
    """A model is asked."""

    turn: int
    """From 0."""
    model: str


class TurnCut(Value, frozen=True, kw_only=True, tag="turn.cut"):
    """The model's stream ended without an `Answered`: it failed, stalled or was interrupted."""

    turn: int
    error: str


class ToolCallReady(Value, frozen=True, kw_only=True, tag="tool_call.ready"):
    """C11: a call of the client's own tool, whole; it is the client's turn."""

    call_id: CallId
    name: str
    arguments: str


class ToolCallDropped(Value, frozen=True, kw_only=True, tag="tool_call.dropped", omit_defaults=False):
    """U13: the receipt of a call whose arguments never came whole. It was not carried out, and says so in writing."""

    call_id: CallId
    name: str
    bytes_received: int
    executed: Executed = "no"


class ToolStarted(Value, frozen=True, kw_only=True, tag="tool.started"):
    """A server tool is being carried out."""

    call_id: CallId
    name: str
    arguments: str
    label: str
    """A few words for a person: `read_file README.md`."""
    repeatable: bool = False
    """It only reads, and may be carried out again if its server is gone meanwhile (R15)."""


class ToolFinished(Value, frozen=True, kw_only=True, tag="tool.finished", omit_defaults=False):
    """A server tool's result, as the model will see it. Whether it was carried out is always written."""

    call_id: CallId
    name: str
    output: str
    failed: bool = False
    seconds: float = 0.0
    executed: Executed = "yes"
    """`no`: refused or denied before it began; `unknown`: it was running when the server or the run was stopped."""


class ApprovalAsked(Value, frozen=True, kw_only=True, tag="approval.asked"):
    """R12: the run pauses until somebody answers."""

    call_id: CallId
    name: str
    arguments: str
    seconds: float
    """How long it waits before it denies itself."""
    reason: str = ""
    """S17: why it is asked although the policy would let it pass."""


ApprovedBy = Literal["client", "nobody", "timeout", "stop"]
"""Who answered: a person; a client that has nobody to ask; the time that was up; the run's end."""


class ApprovalAnswered(Value, frozen=True, kw_only=True, tag="approval.answered"):
    """R12: the answer, and whose it was."""

    call_id: CallId
    approved: bool
    by: ApprovedBy


class Steered(Value, frozen=True, kw_only=True, tag="message.added"):
    """R13: a message was posted to the run. The next `TurnStarted` is of a model that sees it."""

    message: UserMessage
    command: str = ""
    """R17: what asked for it, where it came from another server: it is said once, whoever has the run."""


class RunDelegated(Value, frozen=True, kw_only=True, tag="run.delegated"):
    """A6: a tool is another agent, and this is its run."""

    call_id: CallId
    run: RunId
    agent: str


class UsageAdded(Value, frozen=True, kw_only=True, tag="usage.added"):
    """A3: an agent of one's own says what it has used; a model says so where its turn ends (`Answered`)."""

    usage: Usage


class Warned(Value, frozen=True, kw_only=True, tag="run.warned"):
    """Something a person should know that is no part of the answer."""

    message: str


class RunHandedOver(Value, frozen=True, kw_only=True, tag="run.handed_over"):
    """R16: its server is going down and has let go of it; it goes on at the next start, or on another server."""


RestartReason = Literal["server_restart", "handed_over"]
CutOff = Literal["request", "reasoning", "text", "tool_call", "tool"]
"""What a run was in the middle of: a model that had said nothing yet, its thoughts, its words, a call that it was
writing, a tool that was running."""


class RunResumed(Value, frozen=True, kw_only=True, tag="run.resumed"):
    """R15: the run goes on after its server was gone; the same run, with the next number."""

    attempt: int
    """Which attempt begins here: 2, 3, …"""
    reason: RestartReason
    cut: CutOff | None
    """What of the last turn was cut off; None: nothing was under way. Always written out."""
    repeated: tuple[CallId, ...] = ()
    """Tools that were running and are carried out once more: they may be (`repeatable`)."""


class RunEnded(Value, frozen=True, kw_only=True, tag="run.ended"):
    """The last event of every log."""

    outcome: Outcome
    usage: Usage = Usage()


Event = (
    Delta
    | RunStarted
    | TurnStarted
    | TurnCut
    | ToolCallReady
    | ToolCallDropped
    | ToolStarted
    | ToolFinished
    | ApprovalAsked
    | ApprovalAnswered
    | Steered
    | RunDelegated
    | UsageAdded
    | Warned
    | RunHandedOver
    | RunResumed
    | RunEnded
)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring events of one log, appended together."""

    first: EventNumber
    at: float
    """Unix time at which they were appended."""
    events: Sequence[Event]

    @property
    def end(self) -> EventNumber:
        """The number after the last event's."""
        return EventNumber(self.first + len(self.events))

    def after(self, number: EventNumber) -> "Batch":
        """The part of it that follows an event number."""
        skip = number + 1 - self.first
        return self if skip <= 0 else Batch(EventNumber(number + 1), self.at, self.events[skip:])


def cut_batches(batches: Iterable[Batch], after: EventNumber, limit: int) -> list[Batch]:
    """Of a run's batches in order: exactly the events that follow a number, `limit` of them at most (one at least)."""
    cut: list[Batch] = []
    room = max(1, limit)
    for batch in batches:
        rest = batch.after(after)
        if not rest.events:
            continue
        if len(rest.events) > room:
            rest = Batch(rest.first, rest.at, rest.events[:room])
        cut.append(rest)
        room -= len(rest.events)
        if room == 0:
            break
    return cut


encode_events = msgspec.json.Encoder().encode
"""The events of a batch as the store keeps them: a JSON array."""
decode_events = msgspec.json.Decoder(list[Event]).decode
"""The inverse of `encode_events`."""


def event_name(event: Event) -> str:
    """The event's word on the wire: `text.added`."""
    name: Any = event.__struct_config__.tag
    return str(name)
