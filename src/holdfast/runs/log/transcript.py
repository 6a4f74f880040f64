"""The fold of a run's log: its messages, text, usage, tools and outcome (R1).

Live runs keep one as they go, plain answers and replays make one from the log, and recovery closes a crashed run from
one; so none can say what another contradicts. No I/O, no clock. Sits on the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    Batch,
    Event,
    FellBack,
    RunEnded,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    Warned,
)
from holdfast.ids import CallId, RunId, SessionId
from holdfast.messages import AssistantMessage, Message, ToolCall, ToolMessage, Usage
from holdfast.outcomes import Outcome
from holdfast.turns import TurnFold


@dataclass(frozen=True, slots=True)
class WaitingApproval:
    """A call that waits for somebody's word (R12)."""

    call_id: CallId
    name: str
    arguments: str
    expires_at: float


class Transcript:
    """What a run has said and done so far."""

    __slots__ = (
        "_messages",
        "_text",
        "_turn",
        "_turn_dropped",
        "approvals",
        "dropped",
        "events",
        "model",
        "outcome",
        "results",
        "run",
        "session",
        "tools",
        "turns",
        "usage",
        "warnings",
    )

    def __init__(self) -> None:
        self.run: RunId | None = None
        self.session: SessionId | None = None
        self.model = ""
        """The model that is answering, or answered last."""
        self.usage = Usage()
        self.outcome: Outcome | None = None
        self.turns = 0
        self.events = 0
        """The number that the next event has."""
        self.dropped: list[ToolCallDropped] = []
        self.tools: list[ToolStarted] = []
        """Server tools that began, in order."""
        self.results: dict[CallId, ToolFinished] = {}
        self.approvals: dict[CallId, WaitingApproval] = {}
        self.warnings: list[str] = []
        self._messages: list[Message] = []
        self._turn: TurnFold | None = None
        self._turn_dropped = False
        self._text: list[str] = []

    def copy(self) -> "Transcript":
        """A fold that goes on by itself."""
        other = Transcript.__new__(Transcript)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, list | dict | TurnFold) else value)
        return other

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        self.extend(batch.events, batch.at)
        # Where what is stored cannot be read, numbers are missing.
        self.events = batch.end

    def extend(self, events: Sequence[Event], at: float) -> None:
        """Take the next events of the log. The hot path: most are tokens, and go to their turn together."""
        words: list[Event] = []
        for event in events:
            if type(event) is TextAdded:
                words.append(event)
                self._text.append(event.text)
            else:
                self._add_words(words)
                words = []
                self._add_other(event, at)
        self._add_words(words)

    def _add_words(self, words: Sequence[Event]) -> None:
        self.events += len(words)
        if words and self._turn is not None:
            self._turn.extend(words)

    def add(self, event: Event, at: float = 0.0) -> None:
        """Take the next event of the log."""
        self.extend((event,), at)

    def _add_other(self, event: Event, at: float) -> None:
        """Take an event that is no token."""
        self.events += 1
        match event:
            case RunStarted():
                self.run, self.session, self.model = event.run, event.session, event.model
            case TurnStarted():
                self._close_turn()
                self._turn, self._turn_dropped = TurnFold(), False
                self.turns += 1
                self.model = event.model
            case FellBack():
                self.model = event.to_model
            case Answered():
                self.usage += event.usage
                self.model = event.model
                if self._turn is not None:
                    self._turn.add(event)
            case TurnCut():
                self._close_turn()
            case ToolCallDropped():
                self.dropped.append(event)
                self._turn_dropped = True
            case ToolStarted():
                self.tools.append(event)
            case ToolFinished():
                self._close_turn()
                self.results[event.call_id] = event
                self.approvals.pop(event.call_id, None)
                self._messages.append(
                    ToolMessage(call_id=event.call_id, name=event.name, output=event.output, failed=event.failed)
                )
            case ApprovalAsked():
                self.approvals[event.call_id] = WaitingApproval(
                    event.call_id, event.name, event.arguments, at + event.seconds
                )
            case ApprovalAnswered():
                self.approvals.pop(event.call_id, None)
            case Warned():
                self.warnings.append(event.message)
            case Steered():
                self._close_turn()
                self._messages.append(event.message)
            case RunEnded():
                self._close_turn()
                self.outcome = event.outcome
                self.usage = event.usage
            case _:
                if self._turn is not None:
                    self._turn.add(event)

    def _close_turn(self) -> None:
        """The turn's message takes its place, once."""
        if self._turn is not None:
            message = self._turn_message(self._turn)
            if message.parts:
                self._messages.append(message)
            self._turn = None

    def _turn_message(self, turn: TurnFold) -> AssistantMessage:
        # A turn that the provider never ended has no calls to carry out, whatever has arrived of them (U13).
        return turn.message(with_calls=turn.answered is not None and not self._turn_dropped)

    @property
    def turn(self) -> TurnFold | None:
        """The turn that is going on."""
        return self._turn

    @property
    def text(self) -> str:
        """All text of all turns, as a streaming client has received it."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """All reasoning of all turns."""
        return "".join(message.reasoning for message in self.messages() if isinstance(message, AssistantMessage))

    def messages(self) -> tuple[Message, ...]:
        """What the run has added to the conversation so far, the running turn included."""
        if self._turn is None:
            return tuple(self._messages)
        current = self._turn_message(self._turn)
        return (*self._messages, current) if current.parts else tuple(self._messages)

    def pending_calls(self) -> tuple[ToolCall, ...]:
        """Whole calls without a result: the client's own, or what the run was stopped before."""
        answered = {m.call_id for m in self._messages if isinstance(m, ToolMessage)}
        return tuple(
            call
            for message in self.messages()
            if isinstance(message, AssistantMessage)
            for call in message.tool_calls
            if call.id not in answered
        )

    def running_tools(self) -> tuple[ToolStarted, ...]:
        """Server tools that began and have not finished."""
        return tuple(tool for tool in self.tools if tool.call_id not in self.results)
