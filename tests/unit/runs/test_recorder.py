"""The recorder: what goes into one commit, and what is known of it meanwhile."""

import asyncio

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import HandedOverError, StoreUnavailableError
from holdfast.events import Answered, Batch, Event, RunHandedOver, RunStarted, TextAdded, TurnStarted
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId, SessionId
from holdfast.outcomes import Completed
from holdfast.runs.log.recorder import MAX_PENDING_EVENTS, Recorder
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.tail import TAIL_EVENTS, Tail
from holdfast.runs.log.transcript import Transcript
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Committed
from holdfast.store.records import RunEnding, RunRecord

RUN = RunId("run_1")
STARTED = RunStarted(run=RUN, session=SessionId("s"), model="m")
TURN = TurnStarted(turn=0, model="m")
ANSWERED = Answered(finish="stop", model="m")


def words(*texts: str) -> list[Event]:
    return [TextAdded(text=text) for text in texts]


class SlowLog(MemoryStore):
    """Commits when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_over: list[list[Event]] = []
        self._waiting: list[tuple[RunId, Batch, Committed]] = []

    def append(self, run: RunId, batch: Batch, committed: Committed) -> None:
        self.handed_over.append(list(batch.events))
        self._waiting.append((run, batch, committed))

    async def end_run(self, run: RunId, batch: Batch, ending: RunEnding) -> None:
        self.handed_over.append(list(batch.events))
        await super().end_run(run, batch, ending)

    async def commit(self) -> None:
        (waiting,) = self._waiting
        self._waiting.clear()
        super().append(*waiting)
        for _ in range(3):  # It is told, and whoever waits for it wakes up.
            await asyncio.sleep(0)


async def recording() -> tuple[Recorder, SlowLog]:
    log = SlowLog()
    await log.create_run(RunRecord(id=RUN, session=SessionId("s"), surface="chat", model="m", created_at=0.0, input=()))
    return Recorder(RUN, log, SystemClock()), log


async def test_the_first_token_takes_the_start_of_the_run_along() -> None:
    """In one commit, at once, also when the model has said everything with it."""
    recorder, log = await recording()
    recorder.push([STARTED])
    recorder.push([TURN])
    assert log.handed_over == []
    recorder.push([*words("all"), ANSWERED])
    assert log.handed_over == [[STARTED, TURN, *words("all"), ANSWERED]]


async def test_a_start_that_nothing_follows_is_saved_all_the_same() -> None:
    """A model that is silent for long."""
    recorder, log = await recording()
    recorder.push([STARTED])
    await asyncio.sleep(0.05)
    assert log.handed_over == [[STARTED]]


async def test_a_token_alone_goes_at_once_and_those_that_come_during_its_commit_go_together() -> None:
    """And a moment later, with what that moment brings."""
    recorder, log = await recording()
    recorder.push(words("one"))
    assert log.handed_over == [words("one")]
    recorder.push(words("two"))
    await log.commit()
    assert recorder.end == 1
    recorder.push(words("three"))
    assert len(log.handed_over) == 1
    await asyncio.sleep(0.02)
    assert log.handed_over[1:] == [words("two", "three")]
    await log.commit()
    recorder.push(words("four"))
    assert log.handed_over[2:] == [words("four")]


async def test_whoever_waits_for_the_log_waits_for_what_rests_too() -> None:
    """A tool begins when all that was told is saved."""
    recorder, log = await recording()
    recorder.push(words("one"))
    recorder.push(words("two"))
    settling = asyncio.get_running_loop().create_task(recorder.drain())
    await asyncio.sleep(0)
    await log.commit()
    assert log.handed_over[1:] == [words("two")]
    assert not settling.done()
    await log.commit()
    async with asyncio.timeout(5):
        await settling
    assert recorder.end == 2


async def test_the_end_of_the_run_goes_with_its_last_words() -> None:
    """R6.a: one commit for both."""
    recorder, log = await recording()
    recorder.push([STARTED, *words("one")])
    await log.commit()
    recorder.push([*words("two"), ANSWERED])
    assert len(log.handed_over) == 1
    await recorder.close(await recorder.finish(), [], Completed(), ())
    assert [type(event).__name__ for event in log.handed_over[1]] == ["TextAdded", "Answered", "RunEnded"]


@pytest.mark.parametrize("looks_every", [100, 10 * TAIL_EVENTS], ids=["now and then", "only at the end"])
async def test_the_transcript_is_whole_whenever_somebody_looks(looks_every: int) -> None:
    """R6.a: also of what is no longer in memory; looking changes nothing, and neither does not looking."""
    recorder, log = await recording()
    expected = Transcript()
    recorder.push([STARTED, TURN])
    for number in range(3 * TAIL_EVENTS):
        recorder.push(words(f"{number} "))
        await recorder_commits(recorder, log)
        if number % looks_every == looks_every // 2:
            assert recorder.transcript.text.endswith(f"{number} ")
            assert recorder.transcript.text.count(" ") == number + 1
    for event in [STARTED, TURN, *words(*(f"{number} " for number in range(3 * TAIL_EVENTS)))]:
        expected.add(event)
    assert recorder.transcript.text == expected.text
    assert recorder.transcript.messages() == expected.messages()
    assert recorder.transcript.events == expected.events
    assert len(recorder.tail.batches) <= 2 * TAIL_EVENTS


async def recorder_commits(recorder: Recorder, log: SlowLog) -> None:
    settling = asyncio.get_running_loop().create_task(recorder.drain())
    await asyncio.sleep(0)
    await log.commit()
    await settling


async def test_a_first_batch_larger_than_the_tail_is_told_whole() -> None:
    """R7.a: a model that has everything ready says it in one read."""
    recorder, log = await recording()
    many = words(*(f"{number} " for number in range(3 * TAIL_EVENTS)))
    subscription = Subscription(RUN, log, recorder, BEFORE_FIRST)
    for round_ in range(3):
        recorder.push(many)
        await recorder_commits(recorder, log)
        assert recorder.end == (round_ + 1) * len(many)
        assert len(recorder.tail.batches) == 1
    heard: list[Event] = []
    while len(heard) < 3 * len(many):
        heard += [event for batch in await subscription.next() for event in batch.events]
    assert heard == many * 3
    assert recorder.transcript.events == 3 * len(many)


async def test_who_begins_after_any_event_hears_the_next_one_first() -> None:
    """R7.a: after any event number, also where memory ends and the store begins."""
    recorder, log = await recording()
    for number in range(2 * TAIL_EVENTS + 20):
        recorder.push(words(f"{number} "))
        await recorder_commits(recorder, log)
    assert recorder.tail.first > 0
    for after in range(BEFORE_FIRST, recorder.end - 1):
        first, *_ = await Subscription(RUN, log, recorder, EventNumber(after)).next()
        assert first.first == after + 1


class Following:
    """Is pushed to, and reads what it has missed."""

    def __init__(self) -> None:
        self.heard: list[Batch] = []
        self.halts = 0

    def push(self, batches: list[Batch]) -> bool:
        self.heard += batches
        return True

    def halted(self, error: Exception | None) -> None:
        self.halts += 1


async def test_a_follower_is_not_told_what_does_not_follow() -> None:
    """R7.a: rather than miss something, it reads."""
    recorder, log = await recording()
    subscription, follower = Subscription(RUN, log, recorder, BEFORE_FIRST), Following()
    assert subscription.follow(follower)
    subscription.push(Batch(EventNumber(3), 0.0, words("three")))
    assert (follower.heard, follower.halts) == ([], 1)
    recorder.push(words("zero"))
    await log.commit()
    assert follower.heard == []
    assert [event for batch in subscription.read_tail() or [] for event in batch.events] == words("zero")
    assert subscription.follow(follower)


async def test_a_run_that_is_far_ahead_of_the_store_is_told_to_wait_and_then_is_not() -> None:
    """R7.c: what is not saved yet is in memory, and that is bounded."""
    recorder, log = await recording()
    assert recorder.push(words("in flight"))
    assert recorder.push(words(*"x" * (MAX_PENDING_EVENTS - 1)))
    assert recorder.push(words("just fits"))
    assert not recorder.push(words("too far"))
    draining = asyncio.get_running_loop().create_task(recorder.drain())
    await asyncio.sleep(0)
    await log.commit()
    assert not draining.done()
    await log.commit()
    async with asyncio.timeout(5):
        await draining
    assert recorder.end == MAX_PENDING_EVENTS + 2
    assert recorder.push(words("on we go"))
    await log.commit()


async def test_a_log_that_could_not_be_written_takes_no_more_and_wakes_whoever_waits() -> None:
    """R6.b: what came behind the batch that was refused is told to nobody either."""
    recorder, log = await recording()
    recorder.push(words("refused"))
    recorder.push(words("behind it"))
    draining = asyncio.get_running_loop().create_task(recorder.drain())
    await asyncio.sleep(0)
    recorder._committed(StoreUnavailableError("the disk is full"))
    async with asyncio.timeout(5):
        await draining
    with pytest.raises(StoreUnavailableError):
        recorder.push(words("later"))
    assert (recorder.end, recorder.transcript.text, len(log.handed_over)) == (0, "", 1)


async def test_a_follower_that_keeps_up_is_pushed_everything_and_halted_at_the_end() -> None:
    """R7.a: without a wake-up in between, and never after the run's last event."""
    recorder, log = await recording()
    subscription, follower = Subscription(RUN, log, recorder, BEFORE_FIRST), Following()
    assert subscription.follow(follower)
    for text in ("one", "two"):
        recorder.push(words(text))
        await log.commit()
        assert (len(follower.heard), follower.halts) == (recorder.end, 0)
    await recorder.close(await recorder.finish(), [], Completed(), ())
    assert (len(follower.heard), follower.halts, subscription.is_over) == (3, 1, True)
    assert recorder.followers == []
    assert not subscription.follow(follower)


async def test_nobody_follows_a_log_that_goes_on_elsewhere() -> None:
    """R16.b, R7.a: whoever catches up with it is told so, and does not wait for what will never come here."""
    recorder, log = await recording()
    reader = Subscription(RUN, log, recorder, BEFORE_FIRST)
    recorder.push([STARTED, TURN, *words("one")])
    await log.commit()
    handing_over = asyncio.ensure_future(recorder.hand_over())
    await asyncio.sleep(0)
    await log.commit()
    await handing_over
    batches = [*await reader.next(), *(await reader.next() if reader.read_tail() else [])]
    assert isinstance(batches[-1].events[-1], RunHandedOver)
    assert not reader.follow(Following())
    with pytest.raises(HandedOverError, match="read on after 3"):
        async with asyncio.timeout(5):
            await reader.next()


def test_the_newest_events_stay_in_memory_and_are_cut_now_and_then() -> None:
    """R7.b: as many as readers that keep up may be behind; forgetting is not done for every batch."""
    tail = Tail(EventNumber(0))
    cuts = []
    for number in range(5 * TAIL_EVENTS):
        if tail.append(Batch(EventNumber(number), 0.0, words("x"))):
            tail.trim()
            cuts.append(number)
            assert tail.first == number + 1 - TAIL_EVENTS
    assert cuts == [2 * TAIL_EVENTS, 3 * TAIL_EVENTS + 1, 4 * TAIL_EVENTS + 2]
    end = EventNumber(5 * TAIL_EVENTS)
    assert tail.read(EventNumber(tail.first - 2), end) is None
    for after in (tail.first - 1, end - 3, end - 2):
        read = tail.read(EventNumber(after), end)
        assert read is not None
        assert [batch.first for batch in read] == list(range(after + 1, end))
    assert tail.read(EventNumber(end - 1), end) == []


async def test_an_end_that_is_not_saved_before_long_is_waited_for_no_longer() -> None:
    """R17.b: whoever looks at the run is answered; one that is not ending is not waited for at all."""
    recorder, log = await recording()
    async with asyncio.timeout(5):
        await recorder.while_ending(60)
        recorder.push([STARTED, TURN, *words("one")])
        await log.commit()
        whole = await recorder.finish()
        await recorder.while_ending(0.01)
        waiting = asyncio.ensure_future(recorder.while_ending(60))
        await recorder.close(whole, [], Completed(), ())
        await waiting
