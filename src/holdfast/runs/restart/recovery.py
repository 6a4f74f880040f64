"""After a crash: every run that was going is closed honestly, unless it goes on (R8). Sits on the store's port.

Runs before the server accepts requests, so nothing here is live. A tool that was running is marked `unknown` and never
run again.
"""

import logging
from collections.abc import Coroutine
from typing import Any, NamedTuple

from holdfast.clock import Clock
from holdfast.errors import LogConflictError
from holdfast.events import RunStarted
from holdfast.ids import EventNumber, RunId
from holdfast.outcomes import Incomplete, RequiresAction
from holdfast.owners import bare_name
from holdfast.runs.closing import close_interrupted
from holdfast.runs.log.ending import end_log
from holdfast.runs.log.reading import read_transcript
from holdfast.runs.restart.resume import request_of
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.port import Store
from holdfast.store.records import RunRecord

logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """What the last process left open."""

    closed: int
    """How many were ended."""
    going_on: list[RunRecord]
    """Those that are taken up again (R15), oldest first."""


async def recover(store: Store, clock: Clock, metrics: Metrics | None = None) -> Recovered:
    """Close every run that the last process left open, but for those that go on; `metrics` count them.

    Raises:
        StoreUnavailableError: the store cannot be used.
    """
    for run in await store.unkept_runs():
        await _each(store, run, store.delete_run(run))
    unfinished = await store.unfinished_runs()
    going_on = [record for record in unfinished if request_of(record) is not None]
    cut_off = [record for record in unfinished if request_of(record) is None]
    for record in cut_off:
        await _each(store, record.id, close(store, record, clock, metrics))
    if cut_off:
        logger.warning("%d runs were cut off by the last stop and are closed as incomplete", len(cut_off))
    return Recovered(len(cut_off), going_on)


async def _each(store: Store, run: RunId, step: Coroutine[Any, Any, None]) -> None:
    """One run whose record is damaged does not keep the others, and the server, from going on."""
    try:
        await step
    except Exception:
        await store.check()
        logger.exception("run %s could not be closed; the next start tries again", run)


async def close(store: Store, record: RunRecord, clock: Clock, metrics: Metrics | None = None) -> None:
    """End the log of a run that nobody goes on with; its server has not counted it.

    Raises:
        StoreUnavailableError: the store cannot be used.
    """
    transcript = await read_transcript(store, record.id)
    # A run that had handed calls over had come to its end: it is the client's turn, as the client may have been told.
    calls = tuple(transcript.calls.handed_over)
    outcome = RequiresAction(reason="client_tools", calls=calls) if calls else Incomplete(reason="server_restart")
    first, now = EventNumber(transcript.events), clock.now()
    started = [] if first else [RunStarted(run=record.id, session=bare_name(record.session), model=record.model)]
    events = [*started, *close_interrupted(transcript, outcome)]
    transcript.extend(events, now)
    end = end_log(transcript, events, outcome, first=first, now=now, asked=record.input)
    try:
        await store.end_run(record.id, end.batch, end.ending)
    except LogConflictError:
        logger.info("run %s had ended after all", record.id)
        return
    if metrics is not None:
        transcript.extend(end.batch.events[-1:], now)
        metrics.run_counted(transcript, record.asked_by)
