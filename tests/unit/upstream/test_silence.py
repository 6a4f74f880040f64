"""How long a provider may be silent, in time that passes only when nobody has anything to do: exact, and at once."""

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from holdfast.config import StreamSettings
from holdfast.errors import ProviderRefusedError, StreamStalledError
from holdfast.events import Delta
from tests.codec_world import chat, frames
from tests.upstream_world import CALL, JSON, Heard, MemoryResponse, MemoryTransport, hear, upstream_over

_T = TypeVar("_T")

ONE, TWO, FINISH = frames(chat("One ")), frames(chat("two.")), frames(chat(finish="stop"))
DONE = frames(done=True)
COMMENT = b": still here\n\n"
UNABLE = b"Streaming is not supported."
PLAIN = b'{"choices": [{"index": 0, "message": {"content": "One two."}, "finish_reason": "stop"}]}'


class Waiting(selectors.DefaultSelector):
    """Waits for nothing: what would be waited for has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select(None)
        self.seconds += max(0.0, timeout)
        return super().select(0)


class WaitingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waiting = Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        return self._waiting.seconds


def run(coroutine: Coroutine[Any, Any, _T]) -> tuple[_T, float]:
    """What comes of it, and how long it took."""
    with asyncio.Runner(loop_factory=WaitingLoop) as runner:
        return runner.run(coroutine), round(runner.get_loop().time(), 2)


async def ask(*pieces: bytes | float, first_byte: float = 9.0, stall: float = 9.0, **more: Any) -> Heard:
    settings = StreamSettings(first_byte_seconds=first_byte, stall_seconds=stall)
    transport = MemoryTransport(MemoryResponse(pieces, **more))
    return await hear(upstream_over(transport, settings=settings), seconds=1_000.0)


@pytest.mark.parametrize(
    ("pieces", "first_byte", "stall"),
    [
        pytest.param((8.0, ONE, TWO, FINISH, DONE), 9.0, 3.0, id="before the first frame"),
        pytest.param((ONE, 8.0, TWO, 8.0, FINISH, DONE), 3.0, 9.0, id="between frames"),
        pytest.param((ONE, *(2.0, TWO) * 20, FINISH, DONE), 3.0, 3.0, id="often"),
        pytest.param((frames(chat("")), *(2.0, frames(chat(""))) * 20, FINISH, DONE), 3.0, 3.0, id="without a word"),
    ],
)
def test_a_silence_within_its_limit_is_none(pieces: tuple[Any, ...], first_byte: float, stall: float) -> None:
    """U14.a, U14.b: the first byte and what follows have limits of their own, and any frame counts."""
    heard, _ = run(ask(*pieces, first_byte=first_byte, stall=stall))
    assert heard.error is None and heard.answered is not None


@pytest.mark.parametrize(
    ("pieces", "first_byte", "stall", "seconds"),
    [
        pytest.param((50.0,), 3.0, 9.0, 3.0, id="before the first frame"),
        pytest.param((*(1.0, COMMENT) * 50,), 3.0, 9.0, 3.0, id="comments before the first frame"),
        pytest.param((ONE, 50.0), 9.0, 3.0, 3.0, id="after it"),
        pytest.param((2.0, ONE, 50.0), 9.0, 3.0, 5.0, id="from the last frame on"),
        pytest.param((ONE, *(1.0, COMMENT) * 50), 9.0, 3.0, 3.0, id="comments after it"),
        pytest.param((frames(chat("")), 2.0, COMMENT, 50.0), 9.0, 3.0, 3.0, id="comments before the first word"),
    ],
)
def test_a_silence_is_cut_at_its_limit(
    pieces: tuple[Any, ...], first_byte: float, stall: float, seconds: float
) -> None:
    """U14.a, U14.b: not a moment later; comments do not count."""
    heard, took = run(ask(*pieces, first_byte=first_byte, stall=stall))
    assert isinstance(heard.error, StreamStalledError)
    assert took == seconds
    has_begun = heard.batches != []
    assert ("sent nothing for 3 seconds" in heard.error.message) is has_begun
    assert ("did not begin to answer in time" in heard.error.message) is not has_begun


@pytest.mark.parametrize(("stall", "seconds"), [(60.0, 5.0), (2.0, 2.0)])
def test_after_its_finish_reason_an_answer_is_not_waited_for_long(stall: float, seconds: float) -> None:
    """U1.b, U16.b: it is whole; usage and the terminator may come, for five seconds or the stall's if that is less."""
    heard, took = run(ask(ONE, TWO, FINISH, 500.0, stall=stall))
    assert heard.error is None and heard.answered is not None
    assert (heard.text, took) == ("One two.", seconds)
    usage = frames({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    heard, took = run(ask(ONE, FINISH, seconds - 0.5, usage, DONE, stall=stall))
    assert heard.answered is not None and heard.answered.usage.total_tokens == 5


class SlowSink:
    """Takes a while over every push."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.heard = Heard()

    def push(self, deltas: Sequence[Delta]) -> bool:
        self.heard.batches.append(deltas)
        return False

    async def drain(self) -> None:
        await asyncio.sleep(self.seconds)


async def ask_slowly(seconds: float, *pieces: bytes | float, stall: float) -> Heard:
    sink = SlowSink(seconds)
    upstream = upstream_over(
        MemoryTransport(MemoryResponse(pieces)),
        settings=StreamSettings(first_byte_seconds=stall, stall_seconds=stall),
    )
    try:
        await upstream.ask(CALL, sink)
    except StreamStalledError as error:
        sink.heard.error = error
    return sink.heard


def test_while_a_sink_is_drained_nobody_is_silent() -> None:
    """U14.a: what waits for us is not silent, however long; and the limit begins anew."""
    heard, _ = run(ask_slowly(10.0, ONE, 2.9, TWO, 2.9, FINISH, DONE, stall=3.0))
    assert heard.error is None and heard.answered is not None


def test_after_a_sink_was_drained_silence_counts_again() -> None:
    """U14.a: from then on."""
    heard, took = run(ask_slowly(10.0, ONE, TWO, 500.0, stall=3.0))
    assert isinstance(heard.error, StreamStalledError)
    assert 23.0 <= took <= 26.0


def test_a_plain_answer_to_a_streamed_question_may_take_as_long_as_a_stall() -> None:
    """U14.a: from the headers on, each read."""
    half = len(PLAIN) // 2
    heard, _ = run(ask(2.5, PLAIN[:half], 2.5, PLAIN[half:], headers=JSON, first_byte=1.0, stall=3.0))
    assert (heard.text, heard.error) == ("One two.", None)
    heard, took = run(ask(PLAIN[:half], 50.0, PLAIN[half:], headers=JSON, first_byte=1.0, stall=3.0))
    assert isinstance(heard.error, StreamStalledError)
    assert took == 3.0


def test_an_explanation_that_does_not_come_is_not_waited_for_long() -> None:
    """The status says enough."""
    heard, took = run(ask(b'{"error": ', 500.0, status=503, stall=60.0))
    assert isinstance(heard.error, ProviderRefusedError)
    assert (heard.error.status, took) == (503, 5.0)


@pytest.mark.parametrize(
    ("asked", "ended"),
    [
        pytest.param([{"pieces": (ONE, FINISH, DONE)}], "released", id="streamed"),
        pytest.param([{"pieces": (ONE, DONE)}], "cut", id="broken off"),
        pytest.param([{"pieces": (PLAIN,), "headers": JSON}], "released", id="plain, although asked to stream"),
        pytest.param([{"pieces": (b"No.",), "status": 401}], "released", id="refused"),
        pytest.param(
            [{"pieces": (UNABLE,), "status": 400}, {"pieces": (PLAIN,), "headers": JSON}], "released", id="plain"
        ),
    ],
)
def test_the_watch_ends_with_the_call(asked: list[dict[str, Any]], ended: str) -> None:
    """Long after it its connection may be another call's, and must not be cut."""
    responses = [MemoryResponse(**each) for each in asked]

    async def ask_and_wait() -> None:
        await hear(upstream_over(MemoryTransport(*responses)), seconds=1_000.0)
        await asyncio.sleep(10_000.0)

    run(ask_and_wait())
    assert [response.ended for response in responses] == [[ended]] * len(responses)


def test_a_plain_question_has_as_much_time_as_the_longer_of_the_two_limits() -> None:
    """U10, U14.a: nothing comes before all of the answer is made."""
    for first_byte, stall in ((3.0, 9.0), (9.0, 3.0)):
        settings = StreamSettings(first_byte_seconds=first_byte, stall_seconds=stall)
        for seconds, is_late in ((8.0, False), (10.0, True)):
            unable = MemoryResponse((UNABLE,), status=400)
            slow = MemoryResponse((PLAIN,), headers=JSON, begins_after_seconds=seconds)
            transport = MemoryTransport(unable, slow)
            heard, _ = run(hear(upstream_over(transport, settings=settings), seconds=1_000.0))
            assert isinstance(heard.error, StreamStalledError) is is_late
            assert (heard.text == "One two.") is not is_late


def test_headers_that_do_not_come_are_waited_for_as_long_as_the_first_byte() -> None:
    """U14.b: the two share one limit, so that comments cannot stretch it."""
    settings = StreamSettings(first_byte_seconds=3.0, stall_seconds=9.0)
    for response in (
        MemoryResponse((ONE, FINISH, DONE), begins_after_seconds=4.0),
        MemoryResponse((2.0, ONE, FINISH, DONE), begins_after_seconds=2.0),
    ):
        heard, took = run(hear(upstream_over(MemoryTransport(response), settings=settings), seconds=1_000.0))
        assert isinstance(heard.error, StreamStalledError)
        assert "did not begin to answer in time" in heard.error.message
        assert took == 3.0
