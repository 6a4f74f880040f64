"""What the three stream decoders have in common: frames in, deltas out, and how a body may end (U14, U16).

A protocol's decoder says what one frame means; whether the answer is whole is decided here. `codec` sits above, with
`stream_reader`, which feeds it; below is `sse`. No I/O.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

import msgspec

from holdfast.errors import ProtocolError, TransportLostError, UpstreamError
from holdfast.events import Answered, Delta, ToolCallBegan
from holdfast.ids import CallId, make_call_id
from holdfast.messages import AssistantMessage, Finish, Usage
from holdfast.sse import SseDecoder, SseFrame
from holdfast.upstream.failures import failure_of_event
from holdfast.upstream.port import ModelCall
from holdfast.upstream.protocols.halves import HalvedCharacters, mend_unicode, settle

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that JSON from a stranger can make the parser raise."""

UNREADABLE_WORDS: Final = "The model's stream has a part of the answer in a form that cannot be read."

_OPENS_STREAM: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a body begins that is an event stream."""

UNNAMED_TOOL: Final = "unnamed"
"""A call whose name never came cannot be carried out, and must not vanish either: under this name the model is told."""


class StreamDecoder(ABC):
    """One answer, streamed or plain. Where the bytes of a stream are cut makes no difference to the deltas."""

    __slots__ = (
        "_call_ids",
        "_finish",
        "_halves",
        "_model",
        "_number_of_calls",
        "_sse",
        "_stop_sequence",
        "done",
        "failure",
        "finished",
        "frames",
    )

    def __init__(self, call: ModelCall) -> None:
        self.failure: UpstreamError | None = None
        """Set when the stream said that it failed; the deltas before it have been returned and stand."""
        self.finished = False
        """The finish reason has arrived: whatever happens to the connection now, the answer is whole (U16)."""
        self.done = False
        """The terminator has arrived: nothing more is worth reading."""
        self.frames = 0
        """How many frames that are not comments have come: the stall clock looks at this (U14)."""
        self._sse = SseDecoder()
        self._halves: HalvedCharacters | None = None
        """From the first half of a character on."""
        self._finish: Finish | None = None
        self._stop_sequence: str | None = None
        self._model = call.model
        self._number_of_calls = 0
        self._call_ids: set[str] = {
            known.id
            for message in call.messages
            if isinstance(message, AssistantMessage)
            for known in message.tool_calls
        }
        """Ids of calls so far. Two calls with one id could not be told apart when their results go back, and some
        servers count from 0 in every turn."""

    def feed(self, data: bytes) -> list[Delta]:
        """What these bytes of a stream add. Never raises; a frame that is not JSON is passed over (U16)."""
        deltas: list[Delta] = []
        if not self.done and self.failure is None:
            self._take_all(self._sse.feed(data), deltas)
            if self._sse.overflowed and not self.finished and self.failure is None:
                self.failure = ProtocolError("The model's stream has an event that is too large to be one.")
        return deltas if self._halves is None else self._halves.join(deltas)

    def end(self) -> list[Delta]:
        """The body has ended, cleanly or not: `Answered` if a finish reason had arrived and it was not given yet.

        Raises:
            UpstreamError: the stream has failed, or its finish reason never came (TransportLostError): a clean end of
                file is not success (U16).
        """
        deltas: list[Delta] = []
        if not self.done and self.failure is None:
            last = self._sse.end()
            if self._sse.is_json and last:
                self._take_plain(last[0][1], deltas)
            else:
                self._take_all(last, deltas)
        if self.failure is not None:
            raise self.failure
        if not self.done:
            self._terminate(deltas)
        if self.failure is not None:
            raise self.failure
        return deltas if self._halves is None else self._halves.join(deltas)

    def take_plain(self, body: bytes) -> list[Delta]:
        """All of a plain answer, `Answered` last: read as a stream is, so that the two cannot differ (U1).

        Raises:
            UpstreamError: it is an error, or no answer of this protocol.
        """
        if body.lstrip().startswith(_OPENS_STREAM):
            # It only calls itself JSON.
            return self.feed(body) + self.end()
        deltas: list[Delta] = []
        self._take_plain(body, deltas)
        if self.failure is None and not self.done:
            self._terminate(deltas)
        if self.failure is not None:
            raise self.failure
        return deltas

    # Below: the protocol's own part.

    @abstractmethod
    def _take(self, event: str, data: bytes, deltas: list[Delta]) -> None:
        """One frame. May raise UNREADABLE, before it has changed anything."""

    @abstractmethod
    def _take_plain(self, body: bytes, deltas: list[Delta]) -> None:
        """A plain answer. Raises UpstreamError, or sets `failure`, when it is none."""

    @abstractmethod
    def _usage(self) -> Usage:
        """The counts so far."""

    @abstractmethod
    def _loss_in(self, value: object) -> UpstreamError | None:
        """What the stream fails with, because this frame, which cannot be read, says something; None: it does not.

        What would be lost with it is a part of the answer, which then would be told as whole without it.
        """

    # Below: for the protocols to use.

    def _number_call(self, given_id: str, name: str, deltas: list[Delta]) -> int:
        """A call begins: its number. It has the provider's id, or ours where that is missing or was there before."""
        number = self._number_of_calls
        self._number_of_calls += 1
        call_id = CallId(given_id) if given_id and given_id not in self._call_ids else make_call_id()
        self._call_ids.add(call_id)
        deltas.append(ToolCallBegan(index=number, call_id=call_id, name=name))
        return number

    def _finish_with(self, finish: Finish, stop_sequence: str | None = None) -> None:
        """The finish reason: whatever happens to the connection now, the answer is whole."""
        self._finish = finish
        self._stop_sequence = stop_sequence
        self.finished = True

    def _terminate(self, deltas: list[Delta]) -> None:
        """The stream's last word has come: the answer is whole if its finish reason has."""
        self.done = True
        if self._finish is None:
            self.failure = TransportLostError("The model's stream ended before it was finished.")
        elif self._finish == "tool_calls" and not self._number_of_calls:
            # What the model wanted done was not done: that must not look like an answer.
            self.failure = ProtocolError("The provider says that the model called a tool, and sent no call.")
        else:
            finish, ended_by = self._finish, self._stop_sequence
            deltas.append(Answered(finish=finish, model=self._model, usage=self._usage(), stop_sequence=ended_by))

    def _take_all(self, frames: list[SseFrame], deltas: list[Delta]) -> None:
        for event, data, _ in frames:
            self.frames += 1
            try:
                self._take(event, data, deltas)
            except UNREADABLE:
                self._take_mended(event, data, deltas)
            if self.done or self.failure is not None:
                return

    def _take_mended(self, event: str, data: bytes, deltas: list[Delta]) -> None:
        # Half a character (a lone surrogate, broken UTF-8) must not cost the rest of the words in its frame.
        mended = mend_unicode(data, keep_halves=True)
        try:
            if mended == data:
                self._pass_over(event, data)
                return
            self._halves = self._halves or HalvedCharacters()
            self._take(event, mended, deltas)
        except UNREADABLE:
            self._pass_over(event, mended)
        if self.failure is not None:
            self.failure.rephrase(settle)

    def _pass_over(self, event: str, data: bytes) -> None:
        # What is not JSON must not cost the rest of the stream (U16); an error may be put in any words.
        try:
            value = msgspec.json.decode(data)
        except UNREADABLE:
            value = data.decode("utf-8", "replace") if event == "error" else None
        failure = failure_of_event(value) if event == "error" else self._loss_in(value)
        if not self.finished:
            self.failure = failure


def count_of(counts: object, *path: str) -> int:
    """A token count at a path of keys; 0 where the provider did not say, or said something that is no number."""
    for key in path:
        counts = counts.get(key) if isinstance(counts, dict) else None
    return int(counts) if isinstance(counts, int | float) and 0 < counts < 1e15 else 0


def encode_arguments(value: Any) -> str:
    """A tool call's arguments as text; some servers send the object itself."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
