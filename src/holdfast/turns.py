"""The fold: a turn's deltas become one assistant message (U1-U4, U6).

The same fold serves the live turn, a replay of the log and recovery after a crash, so they cannot disagree. Agents,
runs and encoders sit above. Vocabulary: imports only vocabulary, and does no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Event,
    ReasoningAdded,
    ReasoningSigned,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
)
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, AssistantPart, Metadata, Reasoning, Text, ToolCall


@dataclass(slots=True)
class _OpenWords:
    """A text or reasoning part while it grows."""

    kind: type[Text] | type[Reasoning]
    summary: bool = False
    pieces: list[str] = field(default_factory=list)
    metadata: Metadata | None = None
    closed: bool = False

    def copy(self) -> "_OpenWords":
        return _OpenWords(self.kind, self.summary, self.pieces.copy(), self.metadata, self.closed)


@dataclass(slots=True)
class OpenCall:
    """A tool call while its arguments arrive."""

    id: CallId
    name: str
    pieces: list[str] = field(default_factory=list)
    metadata: Metadata | None = None

    def copy(self) -> "OpenCall":
        """One that grows by itself."""
        return OpenCall(self.id, self.name, self.pieces.copy(), self.metadata)

    @property
    def bytes_received(self) -> int:
        """How much of the arguments came, for the receipt (U13)."""
        return sum(len(piece.encode("utf-8", "surrogatepass")) for piece in self.pieces)


def has_whole_calls(answered: Answered) -> bool:
    """Are the calls of a turn that ended like this all there? A limit or a filter may have cut the last one (U13)."""
    return answered.finish in ("stop", "tool_calls")


class TurnFold:
    """One turn, growing. Events that are no part of a message are passed over."""

    __slots__ = ("_calls", "_parts", "_words", "answered")

    def __init__(self) -> None:
        self._parts: list[_OpenWords | OpenCall] = []
        self._calls: dict[int, OpenCall] = {}
        self._words: _OpenWords | None = None
        self.answered: Answered | None = None
        """How the provider said the turn ended; None: not yet, or never."""

    def copy(self) -> "TurnFold":
        """A fold that goes on by itself."""
        other = TurnFold()
        words = {id(part): part.copy() for part in self._parts if isinstance(part, _OpenWords)}
        calls = {id(part): part.copy() for part in self._parts if isinstance(part, OpenCall)}
        copies: dict[int, _OpenWords | OpenCall] = {**words, **calls}
        other._parts = [copies[id(part)] for part in self._parts]
        other._calls = {index: calls[id(call)] for index, call in self._calls.items()}
        other._words = words[id(self._words)] if self._words is not None else None
        other.answered = self.answered
        return other

    def extend(self, events: Iterable[Event]) -> None:
        """Take the next events. The hot path: most are words that go on."""
        words, add = self._words, self.add
        for event in events:
            if type(event) is TextAdded and words is not None and words.kind is Text:
                words.pieces.append(event.text)
            else:
                add(event)
                words = self._words

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case TextAdded():
                words = self._words
                if words is None or words.kind is not Text:
                    words = self._begin(_OpenWords(Text))
                words.pieces.append(event.text)
            case ReasoningAdded():
                words = self._words
                if words is None or words.kind is not Reasoning or words.closed or words.summary != event.summary:
                    words = self._begin(_OpenWords(Reasoning, event.summary))
                words.pieces.append(event.text)
            case ReasoningSigned():
                words = self._words
                if words is None or words.kind is not Reasoning or words.closed:
                    # A provider may send sealed reasoning without any words to go with it.
                    words = self._begin(_OpenWords(Reasoning))
                words.metadata = {**(words.metadata or {}), **event.metadata}
                words.closed = True
            case ToolCallBegan():
                call = OpenCall(event.call_id, event.name)
                self._calls[event.index] = call
                self._parts.append(call)
                self._words = None
            case ArgumentsAdded():
                self._calls[event.index].pieces.append(event.text)
            case ToolCallAnnotated():
                call = self._calls[event.index]
                call.metadata = {**(call.metadata or {}), **event.metadata}
            case Answered():
                self.answered = event
            case _:
                pass

    def _begin(self, words: _OpenWords) -> _OpenWords:
        self._parts.append(words)
        self._words = words
        return words

    @property
    def calls(self) -> tuple[OpenCall, ...]:
        """The calls that have begun, in order."""
        return tuple(self._calls.values())

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """The calls of a turn that the provider has not ended, or has cut: none may be carried out or shown (U13)."""
        return () if self.answered is not None and has_whole_calls(self.answered) else self.calls

    @property
    def has_text(self) -> bool:
        """Has any text come?"""
        return any(isinstance(part, _OpenWords) and part.kind is Text for part in self._parts)

    def message(self, *, with_calls: bool = True) -> AssistantMessage:
        """The message so far; `with_calls=False` leaves out calls that were dropped."""
        parts: list[AssistantPart] = []
        for part in self._parts:
            match part:
                case _OpenWords(kind=kind) if kind is Text:
                    parts.append(Text(text="".join(part.pieces)))
                case _OpenWords():
                    parts.append(
                        Reasoning(text="".join(part.pieces), summary=part.summary, metadata=part.metadata),
                    )
                case OpenCall() if with_calls:
                    parts.append(
                        ToolCall(id=part.id, name=part.name, arguments="".join(part.pieces), metadata=part.metadata)
                    )
                case _:
                    pass
        return AssistantMessage(parts=tuple(parts))
