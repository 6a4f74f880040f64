"""Streams over a borrowed connection: told at once, at the client's pace, and left when it goes."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.api.chat_completions.encode import ChatEncoder
from holdfast.api.dialects import DIALECTS
from holdfast.api.streams.body import LENT_BODY, BodyOwner
from holdfast.api.streams.encoder import KEEPALIVE
from holdfast.api.streams.event_stream import EventStream
from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, TextAdded
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId, SessionId
from holdfast.outcomes import Completed
from holdfast.runs.log.recorder import Recorder
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.tail import TAIL_EVENTS
from holdfast.store.memory import MemoryStore
from holdfast.store.records import RunRecord

RUN = RunId("run_1")


class Borrowed:
    """A connection to a client that may stop reading for a while, or go."""

    def __init__(self) -> None:
        self.body = b""
        self.ended = self.broken = False
        self.is_there = True
        self.is_ready = True
        self.left = 0
        self.stream: BodyOwner | None = None
        self._unread = b""
        self._reads = asyncio.Event()

    def buffer_headers(self) -> None:
        pass

    def flush_headers(self) -> None:
        pass

    def start(self, stream: BodyOwner, first: bytes) -> bool:
        self.stream = stream
        if self.is_there and first:
            self.push(first)
        return self.is_there

    def push(self, data: bytes, /) -> bool:
        assert data
        assert not self.ended
        assert self.is_there
        if self.is_ready:
            self.body += data
        else:
            self._unread += data
        return self.is_ready

    def end(self, data: bytes) -> None:
        self.push(data)
        self.ended = True

    def abort(self) -> None:
        self.broken = True

    async def drain(self) -> None:
        while not self.is_ready:
            self._reads.clear()
            await self._reads.wait()

    def stop_reading(self) -> None:
        self.is_ready = False

    def read_on(self) -> None:
        self.is_ready = True
        self.body += self._unread
        self._unread = b""
        self._reads.set()

    def go(self) -> None:
        self.is_there = False
        assert self.stream is not None
        self.stream.lost()

    @property
    def words(self) -> list[str]:
        return [text.decode() for text in re.findall(rb'"content":"([^"]+)"', self.body)]


class LiveLog:
    """A run that is being recorded, and a stream of it."""

    def __init__(self, store: MemoryStore, wire: Borrowed, keepalive_seconds: float) -> None:
        self.store = store
        self.recorder = Recorder(RUN, store, SystemClock())
        self.wire = wire
        self.subscription = Subscription(RUN, store, self.recorder, BEFORE_FIRST, self._left)
        self.encoder = ChatEncoder(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
        self.response = EventStream(self.subscription, self.encoder, keepalive_seconds=keepalive_seconds)

    def _left(self) -> None:
        self.wire.left += 1

    async def say(self, *words: str) -> None:
        self.recorder.push([TextAdded(text=word) for word in words])
        await self.recorder.drain()

    async def end(self) -> None:
        await self.recorder.close(await self.recorder.finish(), [], Completed(), ())

    async def stream(self) -> None:
        """The request's own task, which is over when the stream has been handed over."""
        started: list[Any] = []

        async def send(message: Any) -> None:
            started.append(message["type"])

        async def receive() -> Any:
            raise AssertionError("the connection says by itself when the client goes")

        await self.response({LENT_BODY: self.wire}, receive, send)
        assert started == ["http.response.start"]


@asynccontextmanager
async def unread_log(wire: Borrowed, *, keepalive_seconds: float = 5) -> AsyncIterator[LiveLog]:
    store = MemoryStore()
    await store.create_run(
        RunRecord(id=RUN, session=SessionId("s"), surface="chat", model="m", created_at=0.0, input=())
    )
    log = LiveLog(store, wire, keepalive_seconds)
    before = asyncio.all_tasks()
    async with asyncio.timeout(10):
        yield log
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)
    assert wire.left == 1
    assert not log.recorder.followers


@asynccontextmanager
async def live_log(wire: Borrowed, *, keepalive_seconds: float = 5) -> AsyncIterator[LiveLog]:
    async with unread_log(wire, keepalive_seconds=keepalive_seconds) as log:
        await log.stream()
        yield log


class Witness:
    """Told after the stream; notes what the client had by then."""

    def __init__(self, wire: Borrowed) -> None:
        self.wire = wire
        self.seen: list[str] = []
        self.told_batches = 0

    def push(self, batch: Batch) -> None:
        self.seen = self.wire.words
        self.told_batches += 1

    def abandon(self) -> None:
        raise AssertionError("the log is not given up")


async def test_what_is_durable_is_sent_in_the_same_step() -> None:
    """R7.a: saved first, then told, and at once; no task waits for it."""
    tasks = asyncio.all_tasks()
    async with live_log(wire := Borrowed()) as log:
        assert asyncio.all_tasks() == tasks
        log.recorder.followers.append(witness := Witness(wire))
        await log.say("one")
        assert witness.seen == ["one"]
        log.recorder.followers.pop()
        await log.say("two")
        await log.end()
    assert wire.words == ["one", "two"]
    assert wire.ended
    assert wire.body.endswith(b"data: [DONE]\n\n")


async def test_what_was_said_before_the_stream_began_is_sent_first() -> None:
    """R7.a: from memory, without waiting."""
    async with unread_log(wire := Borrowed()) as log:
        await log.say("one")
        await log.say("two")
        await log.stream()
        assert wire.words == ["one", "two"]
        await log.say("three")
        await log.end()
    assert wire.words == ["one", "two", "three"]


async def test_a_whole_log_is_sent_from_memory_and_from_the_store() -> None:
    """R7.a: also when the run is over before anybody reads it."""
    words = [str(number) for number in range(3 * TAIL_EVENTS)]
    async with unread_log(wire := Borrowed()) as log:
        for start in range(0, len(words), 64):
            await log.say(*words[start : start + 64])
        assert log.recorder.read_tail(BEFORE_FIRST) is None, "the beginning is in the store alone"
        await log.end()
        await log.stream()
    assert wire.words == words
    assert wire.ended


async def test_a_client_that_falls_behind_gets_all_of_it_later_and_once() -> None:
    """R7.a, R7.b: a slow reader holds nothing up, and misses nothing."""
    async with live_log(wire := Borrowed()) as log:
        expected: list[str] = []
        for round_ in range(4):
            wire.stop_reading()
            for number in range(50):
                expected.append(f"{round_}.{number}")
                await log.say(expected[-1])
            assert len(wire.words) == 51 * round_
            wire.read_on()
            await asyncio.sleep(0.01)
            assert wire.words == expected
            expected.append(f"{round_} at once")
            await log.say(expected[-1])
            assert wire.words == expected
        wire.stop_reading()
        await log.say("last")
        await log.end()
        await asyncio.sleep(0.01)
        wire.read_on()
    assert wire.words == [*expected, "last"]
    assert wire.body.count(b"[DONE]") == 1


async def test_a_silent_stream_shows_that_the_connection_lives() -> None:
    """C7.a: also between what is told."""
    async with live_log(wire := Borrowed(), keepalive_seconds=0.05) as log:
        await log.say("one")
        await asyncio.sleep(0.18)
        assert 2 <= wire.body.count(KEEPALIVE) <= 4
        for _ in range(8):
            await log.say("more")
            await asyncio.sleep(0.01)
        assert wire.body.count(KEEPALIVE) <= 4
        await log.end()
    shown = wire.body
    await asyncio.sleep(0.1)
    assert wire.body == shown, "nothing follows the end"


async def test_signs_of_life_are_not_kept_for_a_client_that_does_not_read() -> None:
    """C7.a, R7.c: it would not see them, and there would be more of them for as long as it is there."""
    async with live_log(wire := Borrowed(), keepalive_seconds=0.01) as log:
        wire.stop_reading()
        await log.say("one")
        await asyncio.sleep(0.05)
        wire.read_on()
        assert KEEPALIVE not in wire.body
        while KEEPALIVE not in wire.body:
            await asyncio.sleep(0.001)
        await log.end()
    assert wire.words == ["one"]


async def test_a_stream_whose_headers_cannot_be_sent_gives_up_its_place() -> None:
    """R3.a: and what had been kept of them is not kept back any longer."""
    wire = Borrowed()
    flushed: list[bool] = []
    wire.flush_headers = lambda: flushed.append(True)  # type: ignore[method-assign]
    async with unread_log(wire) as log:

        async def send(message: Any) -> None:
            raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            await log.response({LENT_BODY: wire}, None, send)  # type: ignore[arg-type]
        assert (wire.left, flushed, wire.body) == (1, [True], b"")


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_a_client_can_leave(is_stuck: bool) -> None:
    """R3.a: at once, whether or not something waits to be taken by it."""
    async with live_log(wire := Borrowed()) as log:
        await log.say("one")
        if is_stuck:
            wire.stop_reading()
            await log.say("two")
            await asyncio.sleep(0)
        wire.go()
        assert wire.left == 1
        await log.say("three")
    assert wire.words == ["one"]


async def test_a_client_that_has_left_before_its_stream_began_is_not_written_to() -> None:
    """R3.a: it left while its run was being created."""
    wire = Borrowed()
    wire.is_there = False
    async with live_log(wire) as log:
        assert wire.left == 1
        await log.say("one")
    assert wire.body == b""


async def test_one_that_leaves_while_the_others_are_told_is_told_no_more() -> None:
    """Two streams of one run, and the first one's end takes the second along."""
    async with live_log(first := Borrowed()) as log:
        second = Borrowed()
        encoder = ChatEncoder(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
        subscription = Subscription(RUN, log.store, log.recorder, BEFORE_FIRST)
        other = EventStream(subscription, encoder, keepalive_seconds=5)

        async def ignore(message: Any) -> None:
            pass

        await other({LENT_BODY: second}, None, ignore)  # type: ignore[arg-type]
        push = first.push

        def push_and_lose_the_other(data: bytes, /) -> bool:
            if second.is_there:
                second.go()
            return push(data)

        first.push = push_and_lose_the_other  # type: ignore[method-assign]
        await log.say("one")
        await log.end()
    assert first.words == ["one"]
    assert second.words == []


class BrokenLog(MemoryStore):
    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        raise StoreUnavailableError("the disk is gone")


async def test_a_log_that_cannot_be_read_on_ends_its_stream_with_an_error() -> None:
    """C5.a: never a bare end."""
    wire = Borrowed()
    log = LiveLog(BrokenLog(), wire, 5)
    log.recorder.tail.first = EventNumber(5)
    log.recorder.end = EventNumber(9)
    await log.stream()
    async with asyncio.timeout(5):
        while not wire.ended:
            await asyncio.sleep(0)
    assert b"the disk is gone" in wire.body
    assert b'"finish_reason":"error"' in wire.body
    assert wire.body.endswith(b"data: [DONE]\n\n")
    assert wire.left == 1


async def test_a_stream_that_cannot_even_say_that_it_failed_is_broken_off_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R2.b: whatever is wrong with one of them."""
    async with live_log(wire := Borrowed()) as log:
        log.recorder.followers.append(witness := Witness(wire))

        def fail(encoder: ChatEncoder, *arguments: Any) -> bytes:
            raise StoreUnavailableError("the disk is gone")

        monkeypatch.setattr(ChatEncoder, "encode", fail)
        monkeypatch.setattr(ChatEncoder, "fail", fail)
        await log.say("one")
        assert (wire.broken, wire.ended, wire.left) == (True, False, 1)
        assert witness.told_batches == 1
        log.recorder.followers.pop()
        await log.end()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_stream_that_fails_inside_is_broken_off_alone(
    is_behind: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2.b: not ended as if it were whole; the run, and who else reads it, notice nothing."""
    async with live_log(wire := Borrowed()) as log:
        await log.say("one")
        if is_behind:
            wire.stop_reading()
            await log.say("two")

        def encode(encoder: ChatEncoder, batches: list[Batch]) -> bytes:
            raise ValueError("a bug")

        monkeypatch.setattr(ChatEncoder, "encode", encode)
        await log.say("three")
        wire.read_on()
        await asyncio.sleep(0.01)
        assert (wire.broken, wire.ended, wire.left) == (True, False, 1)
        assert "a bug" in caplog.text
        await log.say("four")
        assert log.recorder.failure is None
