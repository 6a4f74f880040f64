"""One way to look at a run, whether it is going on here or is stored (R1, J1).

Made by the supervisor; what every surface shows of a run comes from here. Sits on live runs and the store's records.
"""

from collections.abc import Sequence

from holdfast.ids import RunId
from holdfast.messages import Usage
from holdfast.outcomes import Outcome, RunStatus, outcome_name
from holdfast.runs.live import LiveRun
from holdfast.runs.log.reading import read_transcript
from holdfast.runs.log.transcript import Transcript, WaitingApproval
from holdfast.runs.state import Phase
from holdfast.store.port import RunLog
from holdfast.store.records import RunRecord


class RunView:
    """A run, as it is now."""

    __slots__ = ("_live", "_log", "record")

    def __init__(self, record: RunRecord, live: LiveRun | None, log: RunLog) -> None:
        self.record = record
        """As it was asked for; of a run that has ended, also what came of it."""
        self._live = live
        self._log = log

    @property
    def run(self) -> RunId:
        """Its id."""
        return self.record.id

    @property
    def status(self) -> RunStatus:
        """Its state in a word."""
        if self.outcome is not None:
            return outcome_name(self.outcome)
        if self._live is None or (self._live.state.phase is Phase.WAITING_APPROVAL and not self.approvals):
            # A crash has cut it off, and no start has closed it yet; or its question is not in the log yet.
            return "running"
        return self._live.state.status

    @property
    def is_queued(self) -> bool:
        """Does it wait for its turn?"""
        return self.status == "queued"

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: it has not."""
        return self._live.recorder.transcript.outcome if self._live is not None else self.record.outcome

    @property
    def is_left(self) -> bool:
        """Has its server let go of it, so that it goes on when one is back (R16)?"""
        return self._live is None and self.outcome is None and self.record.on_restart == "resume"

    @property
    def model(self) -> str:
        """The model that is answering, or answered last; until one does, the one that was asked for."""
        if self._live is not None:
            return self._live.recorder.transcript.model or self.record.model
        return self.record.answered_by or self.record.model

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._live.recorder.transcript.usage if self._live is not None else self.record.usage

    @property
    def text(self) -> str:
        """The answer so far; of a run that has ended, its beginning."""
        return self._live.recorder.transcript.text if self._live is not None else self.record.text

    @property
    def events(self) -> int:
        """How many events its log has."""
        return self._live.recorder.end if self._live is not None else self.record.events

    @property
    def approvals(self) -> Sequence[WaitingApproval]:
        """The calls that wait for somebody's word."""
        if self._live is None or self._live.state.phase is not Phase.WAITING_APPROVAL:
            return ()
        return tuple(self._live.recorder.transcript.approvals.values())

    async def read_transcript(self) -> Transcript:
        """All that it has said and done so far.

        Raises:
            StoreUnavailableError: its log cannot be read now.
        """
        return self._live.recorder.transcript if self._live is not None else await read_transcript(self._log, self.run)
