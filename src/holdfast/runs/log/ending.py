"""The end of a log: its last batch, and all that is saved with it in one transaction (R6, R8).

Made by the recorder for a run that ends, and by recovery for one that a crash has cut off. Sits on the transcript.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.events import Batch, Event, RunEnded
from holdfast.ids import EventNumber
from holdfast.messages import Message
from holdfast.outcomes import Outcome
from holdfast.runs.log.transcript import Transcript
from holdfast.store.records import PREVIEW_CHARACTERS, RunEnding


class LogEnding(NamedTuple):
    """What `RunLog.end_run` takes."""

    batch: Batch
    ending: RunEnding


def end_log(
    transcript: Transcript,
    events: Sequence[Event],
    outcome: Outcome,
    *,
    first: EventNumber,
    now: float,
    asked: Sequence[Message],
) -> LogEnding:
    """The end of a run.

    Args:
        transcript: the fold of its log, those events included; what it has said is saved as the answer.
        events: the last ones before `RunEnded`.
        outcome: how it ended.
        first: the number of the first of the events.
        now: Unix time.
        asked: the run's input.
    """
    return LogEnding(
        Batch(first, now, [*events, RunEnded(outcome=outcome, usage=transcript.spending.usage)]),
        RunEnding(
            outcome=outcome,
            usage=transcript.spending.usage,
            ended_at=now,
            messages=(*asked, *transcript.messages(outcome)),
            text=transcript.text[:PREVIEW_CHARACTERS],
            answered_by=transcript.model,
            used=transcript.spending.by_model,
        ),
    )
