"""P9: the replay of a response whose server was down for days is not a flood, and nobody misses its end."""

import msgspec
import pytest

from holdfast.api.responses.encode import FROM_THE_START, ResponseEncoder
from holdfast.api.responses.response_object import envelope_of
from holdfast.events import Batch, Event, RunEnded, RunStarted, TextAdded, TurnStarted
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.outcomes import Incomplete
from holdfast.store.records import RunRecord

RUN, SESSION = RunId("run_1"), SessionId("s")
STARTED: list[Event] = [
    RunStarted(run=RUN, session=SESSION, model="m"),
    TurnStarted(turn=0, model="m"),
    TextAdded(text="so far"),
]
ENDED: list[Event] = [RunEnded(outcome=Incomplete(reason="server_restart"))]
DAYS = 3 * 86_400.0


def replay(starting_after: int) -> bytes:
    """A response that was cut off by a restart three days ago."""
    record = RunRecord(id=RUN, session=SESSION, surface="responses", model="m", created_at=1000.0)
    encoder = ResponseEncoder(envelope_of(record, "holdfast"), lambda: 0.0, starting_after=starting_after)
    log = [Batch(EventNumber(0), 1001.0, STARTED), Batch(EventNumber(3), 1001.0 + DAYS, ENDED)]
    return encoder.begin() + encoder.encode(log)


def test_days_without_a_server_are_not_filled_with_signs_of_life() -> None:
    """Between the last word and the restart nobody was there to break the silence."""
    written = replay(FROM_THE_START)
    assert written.count(b"event: response.in_progress") == 1
    assert written.count(b"event: response.incomplete") == 1


@pytest.mark.parametrize("seen", [4, 5, 8, 9, 40])
def test_who_was_shown_signs_of_life_before_a_crash_is_told_the_end_after_it(seen: int) -> None:
    """P9.c: they have numbers that no log knows of; the numbers go on from there, without a gap."""
    written = replay(seen)
    data = [line[6:] for line in written.split(b"\n") if line.startswith(b"data: {")]
    told = [msgspec.json.decode(line) for line in data]
    assert [event["sequence_number"] for event in told] == list(range(seen + 1, seen + 5))
    assert [event["type"] for event in told] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
