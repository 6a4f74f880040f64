"""After a crash: every run that was going is closed honestly (R8). Sits on the store's port and the transcript.

Runs before the server accepts requests, so nothing here is live. A tool that was running is marked `unknown` and never
run again.
"""

import logging
from collections.abc import Coroutine
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import LogConflictError
from holdfast.ids import EventNumber, RunId
from holdfast.outcomes import Incomplete, RequiresAction
from holdfast.runs.closing import close_interrupted
from holdfast.runs.log.ending import end_log
from holdfast.runs.log.reading import read_transcript
from holdfast.store.port import Store
from holdfast.store.records import RunRecord

logger = logging.getLogger(__name__)


async def recover(store: Store, clock: Clock) -> int:
    """Close every run that the last process left open; how many there were.

    Raises:
        StoreUnavailableError: the store cannot be used.
    """
    for run in await store.unkept_runs():
        await _each(store, run, store.delete_run(run))
    unfinished = await store.unfinished_runs()
    for record in unfinished:
        await _each(store, record.id, _close(store, record, clock))
    if unfinished:
        logger.warning("%d runs were cut off by the last stop and are closed as incomplete", len(unfinished))
    return len(unfinished)


async def _each(store: Store, run: RunId, step: Coroutine[Any, Any, None]) -> None:
    """One run whose record is damaged does not keep the others, and the server, from going on."""
    try:
        await step
    except Exception:
        await store.check()
        logger.exception("run %s could not be closed; the next start tries again", run)


async def _close(store: Store, record: RunRecord, clock: Clock) -> None:
    transcript = await read_transcript(store, record.id)
    # A run that had handed calls over had come to its end: it is the client's turn, as the client may have been told.
    calls = tuple(transcript.handed_over)
    outcome = RequiresAction(reason="client_tools", calls=calls) if calls else Incomplete(reason="server_restart")
    first, now = EventNumber(transcript.events), clock.now()
    events = close_interrupted(transcript, outcome)
    transcript.extend(events, now)
    end = end_log(transcript, events, outcome, first=first, now=now, asked=record.input)
    try:
        await store.end_run(record.id, end.batch, end.ending)
    except LogConflictError:
        logger.info("run %s had ended after all", record.id)
