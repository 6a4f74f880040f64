"""How a response's growth is written: server-sent events, or a line for each message of a WebSocket (P3, P9).

The fold says what happens; this module numbers it and writes it. Text deltas, the only hot shape, are joined from bytes
prepared once per message. Made without a request; does no I/O. Sits on the fold and the response object.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.api.items.fold import ResponseFold
from holdfast.api.items.outputs import MessageItem
from holdfast.api.responses.response_object import Envelope, render_response, status_of, terminal_event
from holdfast.api.streams.encoder import KEEPALIVE
from holdfast.errors import HoldfastError
from holdfast.events import Batch, RunEnded
from holdfast.outcomes import Failed, outcome_reason

DONE: Final = b"data: [DONE]\n\n"
FROM_THE_START: Final = -1

_encode = msgspec.json.encode
_TEXT_DELTA: Final = "response.output_text.delta"
_PERIOD: Final = 0.9
"""A beat is due after this much of the keepalive time …"""
_MARGIN: Final = 0.1
"""… and is sent this much later, when what was said before it was due has surely been saved and told."""
MAX_BEATS: Final = 1_000
"""In one silence. Longer ones than no run may be silent are of a clock that was set, or of a damaged time."""


class EventWriter:
    """Numbers events and writes those that the reader has not seen. Listens to a fold."""

    def __init__(self, envelope: Envelope, starting_after: int, *, sse: bool) -> None:
        self.next = 0
        """The number of the next event."""
        self._envelope = envelope
        self._after = starting_after
        self._sse = sse
        self._frames: list[bytes] = []
        self._item: MessageItem | None = None
        self._head = b""

    def take(self) -> bytes:
        """What was written since the last time."""
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def catch_up(self) -> None:
        """What follows is new to the reader, whatever number it has seen last."""
        self.next = max(self.next, self._after + 1)

    def write_event(self, name: str, fields: dict[str, Any]) -> None:
        """Write an event."""
        number, self.next = self.next, self.next + 1
        if number > self._after:
            data = _encode({"type": name, "sequence_number": number, **fields})
            self._frames.append(b"event: %b\ndata: %b\n\n" % (name.encode(), data) if self._sse else data + b"\n")

    def write_text(self, item: MessageItem, text: str) -> None:
        """Write a text delta."""
        number, self.next = self.next, self.next + 1
        if number <= self._after:
            return
        if item is not self._item:
            self._item = item
            # The numbers are ours and the id has nothing to escape, so the rest of the event is the same for every
            # delta of a message.
            head = b"event: %b\ndata: " % _TEXT_DELTA.encode() if self._sse else b""
            self._head = (
                head
                + _encode(
                    {
                        "type": _TEXT_DELTA,
                        "item_id": item.id,
                        "output_index": item.index,
                        "content_index": 0,
                        "logprobs": [],
                    }
                )[:-1]
                + b',"delta":'
            )
        tail = b',"sequence_number":%d}\n\n' if self._sse else b',"sequence_number":%d}\n'
        self._frames.append(self._head + _encode(text) + tail % number)

    def write_end(self, fold: ResponseFold) -> None:
        """Write the terminal event."""
        assert fold.outcome is not None
        name = terminal_event(status_of(fold.outcome))
        self.write_event(name, {"response": render_response(self._envelope, fold)})


class ResponseEncoder:
    """A run's log as the stream of a response.

    Silence is shown by repeating `response.in_progress`. These repetitions are numbered like everything else, so they
    must come out the same when the log is replayed: how many there are before an event follows from the times at which
    the log was written.
    """

    def __init__(
        self,
        envelope: Envelope,
        now: Callable[[], float],
        *,
        starting_after: int = FROM_THE_START,
        sse: bool = True,
    ) -> None:
        self._envelope = envelope
        self._now = now
        self._sse = sse
        self._writer = EventWriter(envelope, starting_after, sse=sse)
        self.fold = envelope.make_fold(self._writer)
        self._period = _PERIOD * envelope.beat_seconds
        self._beat_at = envelope.created_at + self._period
        """When the next repetition is due: so long after the log last had something to show, or after the last one."""
        self._beats: list[float] = []
        """When each repetition was due since the log last had something to show."""

    def begin(self) -> bytes:
        """The response exists, and goes on."""
        response = render_response(self._envelope, self.fold)
        self._writer.write_event("response.created", {"response": response})
        self._writer.write_event("response.in_progress", {"response": response})
        return self._writer.take()

    def encode(self, batches: list[Batch]) -> bytes:
        """What these events look like, with the stream's terminator when they are the last."""
        writer = self._writer
        for batch in batches:
            if _was_down(batch):
                # How often the silence had been broken until then is in no log. Who was there has seen higher numbers
                # than the log gives out, and must not miss the end for that.
                writer.catch_up()
            else:
                while self._is_due(batch.at):
                    self._beat()
                self._take_back(batch.at)
            before = writer.next
            self.fold.add_batch(batch)
            if writer.next != before:
                self._beat_at = batch.at + self._period
                self._beats.clear()
        frames = writer.take()
        return frames + DONE if self._sse and self.fold.outcome is not None else frames

    def keepalive(self) -> bytes:
        """A beat when one is due, else a comment; a WebSocket has none."""
        if self._is_due(self._now() - _MARGIN * self._envelope.beat_seconds):
            self._beat()
        return self._writer.take() or (KEEPALIVE if self._sse else b"")

    def fail(self, error: HoldfastError) -> bytes:
        """The end of a stream whose log cannot be read further: a failure, whatever the run came to."""
        self.fold.outcome = Failed(reason="internal", message=error.message)
        self._writer.write_end(self.fold)
        return self._writer.take() + (DONE if self._sse else b"")

    def _is_due(self, at: float) -> bool:
        return at >= self._beat_at and len(self._beats) < MAX_BEATS

    def _take_back(self, at: float) -> None:
        """What was said then was long in being saved, and was taken for silence: the log knows nothing of these beats.

        Their numbers are given out once more. Else all that follows would have other numbers than in a replay, and
        whoever goes on from one of them would miss as many events.
        """
        while self._beats and at < self._beats[-1]:
            self._beat_at = self._beats.pop()
            self._writer.next -= 1

    def _beat(self) -> None:
        self._beats.append(self._beat_at)
        self._beat_at += self._period
        self._writer.write_event("response.in_progress", {"response": render_response(self._envelope, self.fold)})


def _was_down(batch: Batch) -> bool:
    """Is it the end that a restart wrote? Nobody was there to break the silence before it, however long it was."""
    last = batch.events[-1]
    return isinstance(last, RunEnded) and outcome_reason(last.outcome) == "server_restart"
