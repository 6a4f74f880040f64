"""Streams at the ASGI boundary: who leaves, when, and what becomes of the reader's place."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.api.body import ClientLeftError
from holdfast.api.chat_completions.encode import ChatEncoder
from holdfast.api.dialects import DIALECTS
from holdfast.api.sse import KEEPALIVE, EventStream, await_end
from holdfast.clock import SystemClock
from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, RunEnded, RunStarted, TextAdded, ToolStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.outcomes import Completed
from holdfast.runs.recorder import Recorder
from holdfast.runs.subscription import Subscription
from holdfast.runs.transcript import Transcript
from holdfast.store.memory import MemoryStore
from holdfast.store.records import RunRecord

RUN = RunId("run_1")
STARTED = RunStarted(run=RUN, session=SessionId("s"), model="m")
READ = ToolStarted(call_id=CallId("c1"), name="read_file", arguments="{}", label="read_file a.txt")
SOME = [Batch(EventNumber(0), 0.0, [STARTED, TextAdded(text="Half"), READ])]
REST = [Batch(EventNumber(3), 0.0, [TextAdded(text=" and half"), RunEnded(outcome=Completed())])]


class PagedLog(MemoryStore):
    """A log that comes in pages, and may break between two of them or take its time."""

    def __init__(self, pages: list[list[Batch] | Exception | asyncio.Event]) -> None:
        super().__init__()
        self.pages = pages

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        page = self.pages.pop(0)
        if isinstance(page, asyncio.Event):
            await page.wait()
            return []
        if isinstance(page, Exception):
            raise page
        return page


class Reader:
    """A client as the server sees it."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.sent: list[Any] = []
        self.left = 0

    async def receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def subscription(self, *pages: list[Batch] | Exception | asyncio.Event) -> Subscription:
        def left() -> None:
            self.left += 1

        return Subscription(RUN, PagedLog(list(pages)), None, BEFORE_FIRST, left)


def stream(subscription: Subscription) -> EventStream:
    encoder = ChatEncoder(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
    return EventStream(subscription, encoder, keepalive_seconds=5)


async def test_a_whole_log_is_sent_and_the_place_given_up() -> None:
    reader = Reader()
    await stream(reader.subscription(SOME, REST))({}, reader.receive, reader.send)
    assert reader.sent[0]["type"] == "http.response.start"
    assert [message.get("more_body") for message in reader.sent[1:]] == [True, True, False]
    assert reader.body.endswith(b"data: [DONE]\n\n")
    assert reader.left == 1


async def test_a_log_that_cannot_be_read_on_ends_its_stream_with_an_error_and_its_tools() -> None:
    """C5: never a bare end; C8: each running has its end."""
    reader = Reader()
    await stream(reader.subscription(SOME, StoreUnavailableError("the disk is gone")))({}, reader.receive, reader.send)
    body = reader.body.decode()
    assert body.count('"status":"running"') == body.count('"status":"failed"') == 1
    assert '"finish_reason":"error"' in body
    assert "the disk is gone" in body
    assert body.endswith("data: [DONE]\n\n")
    assert reader.sent[-1]["more_body"] is False
    assert reader.left == 1


async def test_a_client_that_leaves_gives_up_its_place_at_once_wherever_the_stream_waits() -> None:
    """R3: while nothing moves."""
    reader = Reader()
    never = asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(stream(reader.subscription(SOME, never))({}, reader.receive, reader.send))
        while b"Half" not in reader.body:
            await asyncio.sleep(0)
        reader.leaves.set()
        while not reader.left:
            await asyncio.sleep(0)
    assert sending.result() is None
    assert reader.left == 1


async def test_a_client_that_does_not_read_is_noticed_when_it_leaves() -> None:
    """R3: while the stream waits for its buffer to drain."""
    reader = Reader()

    async def stuck(message: Any) -> None:
        reader.sent.append(message)
        if message.get("body"):
            await asyncio.Event().wait()

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(stream(reader.subscription(SOME, REST))({}, reader.receive, stuck))
        while not reader.body:
            await asyncio.sleep(0)
        reader.leaves.set()
    assert reader.left == 1


async def test_a_server_that_raises_for_a_lost_connection_is_understood() -> None:
    """R3: ASGI lets `send` raise OSError once the client has gone."""
    reader = Reader()

    async def lost(message: Any) -> None:
        raise BrokenPipeError

    await stream(reader.subscription(SOME, REST))({}, reader.receive, lost)
    assert reader.left == 1


async def test_a_plain_answer_is_folded_to_its_end() -> None:
    reader, transcript = Reader(), Transcript()
    await await_end(reader.subscription(SOME, REST), reader.receive, transcript)
    assert (transcript.text, transcript.outcome) == ("Half and half", Completed())
    assert reader.left == 1


async def test_nobody_waits_for_a_plain_answer_whose_client_has_left() -> None:
    """R3: requests that do not stream behave the same."""
    reader = Reader()
    never = asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_left(reader, never))
        await asyncio.sleep(0)
        reader.leaves.set()
    assert waiting.result()
    assert reader.left == 1


async def _left(reader: Reader, never: asyncio.Event) -> bool:
    with pytest.raises(ClientLeftError):
        await await_end(reader.subscription(SOME, never), reader.receive, Transcript())
    return True


async def test_stopping_the_server_is_not_taken_for_a_client_that_left() -> None:
    """A cancelled handler is cancelled; it does not end as if nothing had happened."""
    reader = Reader()
    task = asyncio.get_running_loop().create_task(_left(reader, asyncio.Event()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert reader.left == 1


# A reader that has read everything is told at once.


class DirectReader(Reader):
    """A client of a server whose `send` needs no task; it may stop taking anything for a while."""

    __module__ = "uvicorn.of_the_tests"

    def __init__(self) -> None:
        super().__init__()
        self.takes = asyncio.Event()
        self.takes.set()
        self.breaks = False

    async def send(self, message: Any) -> None:
        if self.breaks:
            raise BrokenPipeError
        await self.takes.wait()
        self.sent.append(message)


class LiveLog:
    """A run that is being recorded, and a stream of it."""

    def __init__(self, store: MemoryStore, reader: DirectReader, keepalive_seconds: float) -> None:
        self.recorder = Recorder(RUN, store, SystemClock())
        self.reader = reader
        self.subscription = Subscription(RUN, store, self.recorder, BEFORE_FIRST, self.left)
        encoder = ChatEncoder(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
        self.response = EventStream(self.subscription, encoder, keepalive_seconds=keepalive_seconds)

    def left(self) -> None:
        self.reader.left += 1

    async def say(self, *words: str) -> None:
        self.recorder.append([TextAdded(text=word) for word in words])
        await self.recorder.settle()

    async def end(self) -> None:
        await self.recorder.close(lambda transcript: [], Completed(), ())

    @property
    def words(self) -> list[str]:
        return [text.decode() for text in re.findall(rb'"content":"([^"]+)"', self.reader.body)]


@asynccontextmanager
async def live_log(reader: DirectReader, *, keepalive_seconds: float = 5) -> AsyncIterator[LiveLog]:
    store = MemoryStore()
    await store.create_run(
        RunRecord(id=RUN, session=SessionId("s"), surface="chat", model="m", created_at=0.0, input=())
    )
    log = LiveLog(store, reader, keepalive_seconds)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(log.response({}, reader.receive, reader.send))
        await asyncio.sleep(0)
        yield log
    assert reader.left == 1
    assert not log.recorder.followers


async def test_what_is_durable_is_sent_in_the_same_step() -> None:
    """R1: saved first, then told, and at once."""
    async with live_log(reader := DirectReader()) as log:
        await asyncio.sleep(0.01)
        told: list[int] = []
        log.recorder.followers.append(lambda batch: told.append(len(reader.sent)))
        before = len(reader.sent)
        await log.say("one")
        assert told == [before + 1]
        log.recorder.followers.pop()
        await log.say("two")
        await log.end()
    assert log.words == ["one", "two"]
    assert reader.sent[-1]["more_body"] is False
    assert reader.body.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_falls_behind_gets_all_of_it_later_and_once() -> None:
    """R7: a slow reader holds nothing up, and misses nothing."""
    async with live_log(reader := DirectReader()) as log:
        expected: list[str] = []
        for round_ in range(4):
            reader.takes.clear()
            for number in range(50):
                expected.append(f"{round_}.{number}")
                await log.say(expected[-1])
            assert len(log.words) == 51 * round_
            reader.takes.set()
            await asyncio.sleep(0.01)
            assert log.words == expected
            expected.append(f"{round_} at once")
            await log.say(expected[-1])
            assert log.words == expected
        reader.takes.clear()
        await log.say("last")
        await log.end()
        await asyncio.sleep(0.01)
        reader.takes.set()
    assert log.words == [*expected, "last"]
    assert reader.body.count(b"[DONE]") == 1


async def test_a_client_that_is_told_at_once_still_hears_that_the_connection_lives() -> None:
    """C7: also between what is told."""
    async with live_log(reader := DirectReader(), keepalive_seconds=0.05) as log:
        await log.say("one")
        await asyncio.sleep(0.18)
        assert 2 <= reader.body.count(KEEPALIVE) <= 4
        for _ in range(8):
            await log.say("more")
            await asyncio.sleep(0.01)
        assert reader.body.count(KEEPALIVE) <= 4
        await log.end()


@pytest.mark.parametrize("stuck", [False, True])
async def test_a_client_that_is_told_at_once_can_leave(stuck: bool) -> None:
    """R3: whether or not something is waiting to be taken by it."""
    async with live_log(reader := DirectReader()) as log:
        await log.say("one")
        if stuck:
            reader.takes.clear()
            await log.say("two")
        reader.leaves.set()
        await asyncio.sleep(0.01)
        assert reader.left == 1
        await log.say("three")
    assert log.words == ["one"]


async def test_a_connection_that_breaks_while_it_is_told_ends_its_stream_alone() -> None:
    """R3: the run, and who else reads it, notice nothing."""
    async with live_log(reader := DirectReader()) as log:
        await log.say("one")
        reader.breaks = True
        await log.say("two")
        await asyncio.sleep(0.01)
        assert reader.left == 1
        await log.say("three")
        assert log.recorder.failure is None


@pytest.mark.parametrize("steps", range(6))
async def test_a_sign_of_life_that_had_to_wait_keeps_its_place(steps: int) -> None:
    """C7, P3: in front of what comes while it waits, the end too; it may have a number, and nothing follows the end."""
    async with live_log(reader := DirectReader(), keepalive_seconds=0.02) as log:
        await log.say("one")
        reader.takes.clear()
        await asyncio.sleep(0.05)
        ending = asyncio.get_running_loop().create_task(log.end())
        for _ in range(steps):
            await asyncio.sleep(0)
        reader.takes.set()
        await ending
    assert reader.sent[-1]["more_body"] is False
    assert reader.body.endswith(b"data: [DONE]\n\n")
