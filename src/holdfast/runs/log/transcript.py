"""The fold of a run's log: its messages, text, usage, tools and outcome (R1).

Live runs keep one as they go, plain answers and replays make one from the log, and recovery closes a crashed run from
one; so none can say what another contradicts. No I/O, no clock. Sits on the vocabulary.
"""

from collections.abc import Sequence

import msgspec

from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Batch,
    Event,
    FellBack,
    ReasoningAdded,
    RunEnded,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallDropped,
    ToolFinished,
    TurnCut,
    TurnStarted,
    Warned,
)
from holdfast.ids import RunId, SessionId
from holdfast.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction, outcome_name
from holdfast.runs.log.calls import CallLog
from holdfast.runs.log.spending import Spending
from holdfast.turns import OpenCall, TurnFold

_COPIED = (list, dict, set, TurnFold, CallLog, Spending)
"""What changes as a log goes on."""


class Transcript:
    """What a run has said and done so far."""

    __slots__ = (
        "_is_whole",
        "_messages",
        "_text",
        "_turn",
        "_turn_dropped",
        "attempts",
        "calls",
        "commands",
        "events",
        "is_cut",
        "model",
        "outcome",
        "run",
        "session",
        "spending",
        "steering",
        "turns",
        "warnings",
    )

    def __init__(self) -> None:
        self.run: RunId | None = None
        self.session: SessionId | None = None
        self.model = ""
        """The model that is answering, or answered last."""
        self.spending = Spending()
        self.calls = CallLog()
        self.outcome: Outcome | None = None
        self.turns = 0
        self.attempts = 1
        """R15: how often it was begun, or gone on with."""
        self.is_cut = False
        """The last turn broke off."""
        self.events = 0
        """The number that the next event has."""
        self.warnings: list[str] = []
        self.steering: list[UserMessage] = []
        """What was said to it and no turn has seen (R13); it stands behind what the running turn says and does."""
        self.commands: set[str] = set()
        """R17: what was said to it from other servers, by what asked for it."""
        self._messages: list[Message] = []
        self._turn: TurnFold | None = None
        self._turn_dropped = False
        self._is_whole = False
        """The last turn ended as its provider wanted it to."""
        self._text: list[str] = []

    def copy(self) -> "Transcript":
        """A fold that goes on by itself."""
        other = Transcript.__new__(Transcript)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, _COPIED) else value)
        return other

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        self.extend(batch.events, batch.at)
        # Where what is stored cannot be read, numbers are missing.
        self.events = batch.first + len(batch.events)  # as `batch.end`, a call less for every token

    def extend(self, events: Sequence[Event], at: float) -> None:
        """Take the next events of the log. The hot path: most are tokens, and go to their turn together."""
        words: list[Event] = []
        for event in events:
            if type(event) is TextAdded:
                words.append(event)
                self._text.append(event.text)
            elif type(event) is ReasoningAdded or type(event) is ArgumentsAdded:
                words.append(event)
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
        self.calls.add(event, at)
        self.spending.add(event)
        match event:
            case RunStarted():
                self.run, self.session, self.model = event.run, event.session, event.model
            case TurnStarted():
                self._begin_turn(event)
            case FellBack():
                self.model = event.to_model
            case Answered():
                self.model = event.model
                self._is_whole = event.finish in ("stop", "tool_calls")
                self._add_to_turn(event)
            case TurnCut():
                self._close_turn()
                self.is_cut = True
            case ToolCallDropped():
                self._turn_dropped = True
            case ToolFinished():
                self._close_turn()
                self._messages.append(_result_message(event))
            case Warned():
                self.warnings.append(event.message)
            case Steered():
                self.steering.append(event.message)
                if event.command:
                    self.commands.add(event.command)
            case RunResumed():
                self.attempts = event.attempt
            case RunEnded():
                self._close_turn()
                self.outcome = event.outcome
            case _:
                self._add_to_turn(event)

    def _add_to_turn(self, event: Event) -> None:
        if self._turn is not None:
            self._turn.add(event)

    def _begin_turn(self, event: TurnStarted) -> None:
        self._close_turn()
        self._messages += self.steering
        self.steering = []
        self._turn, self._turn_dropped, self._is_whole = TurnFold(), False, False
        self.is_cut = False
        self.turns = event.turn + 1
        self.model = event.model

    def _close_turn(self) -> None:
        """The turn's message takes its place, once."""
        if self._turn is not None:
            _put(self._messages, self._turn_message(self._turn))
            self._turn = None

    def _turn_message(self, turn: TurnFold) -> AssistantMessage:
        # A turn that the provider never ended, or cut, has no calls, whatever has arrived of them (U13).
        return turn.message(with_calls=not turn.open_calls)

    @property
    def turn(self) -> TurnFold | None:
        """The turn that is going on."""
        return self._turn

    @property
    def closed_messages(self) -> tuple[Message, ...]:
        """What it has added to the conversation, without the turn that is going on."""
        return tuple(self._messages)

    @property
    def half_calls(self) -> tuple[OpenCall, ...]:
        """The calls of the running turn that will never be whole, should it end now; those that have a receipt not."""
        return () if self._turn is None or self._turn_dropped else self._turn.open_calls

    @property
    def text(self) -> str:
        """All text of all turns, as a streaming client has received it."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """All reasoning of all turns."""
        return "".join(message.reasoning for message in self.messages() if isinstance(message, AssistantMessage))

    def messages(self, outcome: Outcome | None = None) -> tuple[Message, ...]:
        """What the run has added to the conversation so far, the running turn included.

        Args:
            outcome: how the run is about to end. Of one that has ended it is known.
        """
        said = self._messages.copy()
        if self._turn is not None:
            _put(said, self._turn_message(self._turn))
        match outcome or self.outcome:
            case Incomplete() | Failed() | Cancelled() as cut:
                return self._mark(said, cut)
            case None | Completed() | RequiresAction():
                return (*said, *self.steering)

    def _mark(self, said: list[Message], cut: Incomplete | Failed | Cancelled) -> tuple[Message, ...]:
        """R2: an answer that is not whole says so. Where nothing of it came, an empty message does."""
        outcome, reason = outcome_name(cut), cut.reason
        match said:
            case [*_, AssistantMessage(tool_calls=()) as last] if not (self._is_whole and self.steering):
                said[-1] = msgspec.structs.replace(last, outcome=outcome, reason=reason)
                return (*said, *self.steering)
            case _:
                return (*said, *self.steering, AssistantMessage(parts=(), outcome=outcome, reason=reason))

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


def _result_message(event: ToolFinished) -> ToolMessage:
    return ToolMessage(
        call_id=event.call_id,
        name=event.name,
        output=event.output,
        failed=event.failed,
        by_server=True,
        executed=event.executed,
    )


def _put(said: list[Message], message: AssistantMessage) -> None:
    """A turn's message in its place. Where a turn was cut off and the run went on (R15), both are one answer."""
    if not message.parts:
        return
    match said:
        case [*_, AssistantMessage(tool_calls=()) as begun]:
            said[-1] = _join(begun, message)
        case _:
            said.append(message)


def _join(begun: AssistantMessage, rest: AssistantMessage) -> AssistantMessage:
    """Two halves of one answer: the thoughts, the words as one text, the calls."""
    parts = (*begun.parts, *rest.parts)
    words = "".join(part.text for part in parts if isinstance(part, Text))
    return AssistantMessage(
        parts=(
            *(part for part in parts if isinstance(part, Reasoning)),
            *((Text(text=words),) if words else ()),
            *(part for part in parts if isinstance(part, ToolCall)),
        )
    )
