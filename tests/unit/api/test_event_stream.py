"""Streams at the ASGI boundary: who leaves, when, and what becomes of the reader's place."""

import asyncio
from typing import Any

import pytest

from holdfast.api.chat_completions.encode import ChatEncoder
from holdfast.api.dialects import DIALECTS
from holdfast.api.streams.buffered import MAX_BUFFERED_BYTES, AbortedError
from holdfast.api.streams.disconnect import ClientLeftError
from holdfast.api.streams.event_stream import EventStream, await_end
from holdfast.errors import StoreUnavailableError
from holdfast.events import Batch, RunEnded, RunStarted, TextAdded, ToolStarted
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.outcomes import Completed
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.transcript import Transcript
from holdfast.store.memory import MemoryStore

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
    *more, last = [message["more_body"] for message in reader.sent[1:]]
    assert all(more) and not last
    assert reader.body.endswith(b"data: [DONE]\n\n")
    assert reader.left == 1


async def test_a_log_that_cannot_be_read_on_ends_its_stream_with_an_error_and_its_tools() -> None:
    """C5.a, C8.b: never a bare end; each running has its end."""
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
    """R3.a: while nothing moves."""
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
    """R3.a: while the stream waits for its buffer to drain."""
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
    """R3.a: ASGI lets `send` raise OSError once the client has gone."""
    reader = Reader()

    async def lost(message: Any) -> None:
        raise BrokenPipeError

    await stream(reader.subscription(SOME, REST))({}, reader.receive, lost)
    assert reader.left == 1


class CountingEncoder(ChatEncoder):
    """Counts the signs of life that it is asked for."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
        self.asked = 0

    def keepalive(self) -> bytes:
        self.asked += 1
        return super().keepalive()


@pytest.mark.parametrize("how", ["leaves", "is lost", "ends"])
async def test_nothing_goes_on_for_a_client_that_has_gone(how: str) -> None:
    """R3.a, R7.c: no timer, no task, however its end was noticed."""
    reader, encoder = Reader(), CountingEncoder()
    never = asyncio.Event()
    subscription = reader.subscription(SOME, REST if how == "ends" else never)
    before = asyncio.all_tasks()

    async def send(message: Any) -> None:
        await reader.send(message)
        if how == "is lost" and b"keepalive" in message.get("body", b""):
            raise BrokenPipeError

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        answer = EventStream(subscription, encoder, keepalive_seconds=0.01)
        tasks.create_task(answer({}, reader.receive, send))
        while how != "ends" and not encoder.asked:
            await asyncio.sleep(0.001)
        if how == "leaves":
            reader.leaves.set()
    asked = encoder.asked
    await asyncio.sleep(0.05)
    assert encoder.asked == asked
    assert asyncio.all_tasks() == before
    assert reader.left == 1


async def test_a_stream_that_cannot_be_ended_is_broken_off() -> None:
    """R2.b: the server is told so, and the body has no end that anybody could take for one."""
    reader = Reader()

    class BrokenEncoder(ChatEncoder):
        __slots__ = ()

        def encode(self, batches: Any) -> bytes:
            raise ValueError("a bug")

    encoder = BrokenEncoder(RUN, model="m", created=1, fingerprint="fp", dialect=DIALECTS["holdfast"])
    answer = EventStream(reader.subscription(SOME, REST), encoder, keepalive_seconds=5)
    async with asyncio.timeout(5):
        with pytest.raises(AbortedError):
            await answer({}, reader.receive, reader.send)
    assert all(message.get("more_body", True) for message in reader.sent)
    assert reader.left == 1


async def test_a_client_that_reads_slowly_gets_all_of_it_and_little_of_it_waits() -> None:
    """R7.a, R7.c: the log is read on when there is room again."""
    reader = Reader()
    pages = [[Batch(EventNumber(number), 0.0, [TextAdded(text=f"{number:<20000}")])] for number in range(40)]
    log = [*pages, [Batch(EventNumber(40), 0.0, [RunEnded(outcome=Completed())])]]
    sizes: list[int] = []

    async def slow(message: Any) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        sizes.append(len(message.get("body", b"")))
        await reader.send(message)

    async with asyncio.timeout(10):
        await stream(reader.subscription(*log))({}, reader.receive, slow)
    assert [reader.body.count(b'"content":"%d ' % number) for number in range(40)] == [1] * 40
    assert reader.body.endswith(b"data: [DONE]\n\n")
    assert max(sizes) < MAX_BUFFERED_BYTES + 25_000
    assert reader.left == 1


async def test_a_plain_answer_is_folded_to_its_end() -> None:
    reader, transcript = Reader(), Transcript()
    await await_end(reader.subscription(SOME, REST), reader.receive, transcript)
    assert (transcript.text, transcript.outcome) == ("Half and half", Completed())
    assert reader.left == 1


async def test_nobody_waits_for_a_plain_answer_whose_client_has_left() -> None:
    """R3.c: requests that do not stream behave the same."""
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
