"""P9: the replay of a response whose server was down for days is not a flood."""

from holdfast.api.responses.encode import ResponseEncoder
from holdfast.api.responses.response_object import envelope_of
from holdfast.events import Batch, Event, RunEnded, RunStarted, TextAdded, TurnStarted
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.outcomes import Incomplete
from holdfast.store.records import RunRecord


def test_days_without_a_server_are_not_filled_with_signs_of_life() -> None:
    """Between the last word and the restart nobody was there to break the silence."""
    run, session = RunId("run_1"), SessionId("s")
    record = RunRecord(id=run, session=session, surface="responses", model="m", created_at=1000.0)
    encoder = ResponseEncoder(envelope_of(record, "holdfast"), lambda: 0.0)
    started: list[Event] = [
        RunStarted(run=run, session=session, model="m"),
        TurnStarted(turn=0, model="m"),
        TextAdded(text="so far"),
    ]
    ended: list[Event] = [RunEnded(outcome=Incomplete(reason="server_restart"))]
    days = 3 * 86_400.0
    encoder.begin()
    written = encoder.encode([Batch(EventNumber(0), 1001.0, started), Batch(EventNumber(3), 1001.0 + days, ended)])
    assert written.count(b"event: response.in_progress") == 0
    assert written.count(b"event: response.incomplete") == 1
