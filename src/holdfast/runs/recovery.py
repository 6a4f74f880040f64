"""After a crash: every run that was going is closed honestly (R8). Sits on the store's port and the transcript.

Runs before the server accepts requests, so nothing here is live. A tool that was running is marked `unknown` and never
run again.
"""

import logging

from holdfast.clock import Clock
from holdfast.errors import LogConflictError
from holdfast.events import Batch, Event, RunEnded
from holdfast.ids import BEFORE_FIRST, EventNumber, RunId
from holdfast.outcomes import Incomplete
from holdfast.runs.closing import close_interrupted
from holdfast.runs.log.transcript import Transcript
from holdfast.store.port import RunLog, Store
from holdfast.store.records import PREVIEW_CHARACTERS, RunEnding, RunRecord

logger = logging.getLogger(__name__)

PAGE_EVENTS = 2000


async def recover(store: Store, clock: Clock) -> int:
    """Close every run that the last process left open; how many there were."""
    unfinished = await store.unfinished_runs()
    for record in unfinished:
        if record.ephemeral:
            await store.delete_run(record.id)
        else:
            await _close(store, record, clock)
    if unfinished:
        logger.warning("%d runs were cut off by the last stop and are closed as incomplete", len(unfinished))
    return len(unfinished)


async def _close(store: Store, record: RunRecord, clock: Clock) -> None:
    transcript = await read_transcript(store, record.id)
    outcome = Incomplete(reason="server_restart")
    end = EventNumber(transcript.events)
    keep_open = frozenset(record.client_tools)
    events: list[Event] = close_interrupted(transcript, outcome, keep_open)
    for event in events:
        transcript.add(event)
    ended = RunEnded(outcome=outcome, usage=transcript.usage)
    transcript.add(ended)
    now = clock.now()
    try:
        await store.end_run(
            record.id,
            Batch(end, now, [*events, ended]),
            RunEnding(
                outcome=outcome,
                usage=transcript.usage,
                ended_at=now,
                messages=(*record.input, *transcript.messages()),
                text=transcript.text[:PREVIEW_CHARACTERS],
                answered_by=transcript.model,
            ),
        )
    except LogConflictError:
        logger.info("run %s had ended after all", record.id)


async def read_transcript(log: RunLog, run: RunId) -> Transcript:
    """Fold a stored log, whole."""
    transcript = Transcript()
    after = BEFORE_FIRST
    while batches := await log.read_log(run, after, PAGE_EVENTS):
        for batch in batches:
            transcript.add_batch(batch)
        after = EventNumber(batches[-1].end - 1)
    return transcript
