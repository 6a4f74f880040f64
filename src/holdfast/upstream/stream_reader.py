"""Reading one streamed answer: bytes in, deltas to the sink, in the step in which they came (U5, U11, U14).

A sink between two others: the transport's response pushes what every read brings, and what it means is pushed on. So
the usual piece, some words in the middle of an answer, has a short way. `http` sits above: it decides what becomes of
the connection. What the bytes mean is the decoder's business, below in `protocols`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import ProtocolError, TransportLostError, UpstreamError
from holdfast.events import Answered, Delta
from holdfast.sinks import DeltaSink
from holdfast.upstream.protocols.stream_decoder import StreamDecoder
from holdfast.upstream.transport.watchdog import Watchdog

AFTER_FINISH_SECONDS: Final = 5.0
"""How long the terminator and the usage may take once the finish reason has come. The answer is whole without them."""
MAX_KEPT_READS: Final = 64
"""How much of a stream is kept to be read again in its other form (U11); a protocol error comes early or never."""


class StreamReader:
    """One streamed answer: a `ByteSink` that decodes, and pushes on."""

    __slots__ = (
        "_decoder",
        "_frames",
        "_is_flowing",
        "_kept",
        "_make_lenient",
        "_model",
        "_silence",
        "_sink",
        "_stall_seconds",
        "_time",
        "_watchdog",
        "failure",
        "is_over",
        "is_whole",
    )

    def __init__(
        self,
        decoder: StreamDecoder,
        sink: DeltaSink,
        watchdog: Watchdog,
        *,
        model: str,
        stall_seconds: float,
        silence: str,
        make_lenient: Callable[[], StreamDecoder] | None,
    ) -> None:
        """Read with a decoder, or with the lenient one if the first could not make sense of the body.

        `model` is the name by which it was asked, whatever alias the provider reports. Once the answer flows the
        watchdog allows `stall_seconds` without a frame; then it tells the `silence`.
        """
        self.is_over = False
        """Nothing more is wanted of the body."""
        self.is_whole = False
        """It was read to its good end."""
        self.failure: UpstreamError | None = None
        """Why it is over, if it is no good end."""
        self._decoder = decoder
        self._sink = sink
        self._watchdog = watchdog
        self._make_lenient = make_lenient
        self._model = model
        self._stall_seconds = stall_seconds
        self._silence = silence
        self._time = asyncio.get_running_loop().time
        self._kept: list[bytes] = []
        self._frames = 0
        self._is_flowing = False
        """The next piece is most likely like the last."""

    def push(self, data: bytes) -> bool:
        """What a read brought. False: no more of it if `is_over`, else not before `drain`."""
        decoder = self._decoder
        deltas = decoder.feed(data)
        if self._is_flowing and not decoder.finished and decoder.failure is None:
            if decoder.frames == self._frames:
                return True  # Comments are no sign of life (U14).
            self._frames = decoder.frames
            self._watchdog.heard_at = self._time()
            return self._sink.push(deltas)
        return self._push_unusual(data, deltas, decoder.failure)

    async def drain(self) -> None:
        """Wait until the sink takes more. That the provider is not heard meanwhile is our doing, and no silence."""
        self._watchdog.is_waiting = False
        await self._sink.drain()
        self._watchdog.heard_at = self._time()
        self._watchdog.is_waiting = True

    def end(self, lost: UpstreamError | None) -> None:
        """The body has ended, or the connection was lost."""
        deltas, failure = _end(self._decoder)
        self._push_unusual(b"", deltas, failure, is_end=True)
        if lost is not None:
            self.is_whole = False
            if isinstance(self.failure, TransportLostError):
                self.failure = lost

    def _push_unusual(
        self, data: bytes, deltas: list[Delta], failure: UpstreamError | None, *, is_end: bool = False
    ) -> bool:
        """The beginning, the end, and all that is odd."""
        if self._make_lenient is not None:
            self._kept.append(data)
            if not deltas and isinstance(failure, ProtocolError):
                decoder = self._decoder = self._make_lenient()
                deltas, failure = decoder.feed(b"".join(self._kept)), decoder.failure
                if is_end:
                    last, failure = _end(decoder)
                    deltas += last
                self._make_lenient = None
            elif deltas or len(self._kept) == MAX_KEPT_READS:
                self._make_lenient = None
            if self._make_lenient is None:
                self._kept.clear()
        decoder = self._decoder
        self.failure = failure
        self.is_over = decoder.done or failure is not None
        if not deltas and decoder.frames == self._frames:
            return not self.is_over
        if decoder.done:
            self.is_whole = failure is None
            deltas = with_model(deltas, self._model)
        elif decoder.finished:
            self._watchdog.allow(min(AFTER_FINISH_SECONDS, self._stall_seconds), self._silence)
        elif self._frames == 0:
            self._watchdog.allow(self._stall_seconds, self._silence)
        self._frames = decoder.frames
        self._is_flowing = self._make_lenient is None
        self._watchdog.heard_at = self._time()
        return self._sink.push(deltas) and not self.is_over


def with_model(deltas: Sequence[Delta], model: str) -> list[Delta]:
    """The deltas, the end of the turn under the name by which the model was asked."""
    return [msgspec.structs.replace(delta, model=model) if isinstance(delta, Answered) else delta for delta in deltas]


def _end(decoder: StreamDecoder) -> tuple[list[Delta], UpstreamError | None]:
    """What the end of the body adds, and whether it is a good one."""
    if decoder.done or decoder.failure is not None:
        return [], decoder.failure
    try:
        return decoder.end(), decoder.failure
    except UpstreamError as error:
        return [], error
