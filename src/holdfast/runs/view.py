"""One way to look at a run, whether it is going on here or is stored (R1, J1).

Made by the supervisor; what every surface shows of a run comes from here. Sits on live runs and the store's records.
"""

from collections.abc import Sequence

from holdfast.ids import RunId
from holdfast.messages import Usage
from holdfast.outcomes import Outcome, RunStatus, outcome_name
from holdfast.runs.live import LiveRun
from holdfast.runs.log.calls import WaitingApproval
from holdfast.runs.log.reading import read_transcript
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.state import Phase
from holdfast.store.port import RunLog
from holdfast.store.records import RunRecord


class RunView:
    """A run, as it is now."""

    __slots__ = ("_elsewhere", "_live", "_log", "record")

    def __init__(
        self, record: RunRecord, live: LiveRun | None, log: RunLog, elsewhere: Transcript | None = None
    ) -> None:
        """A run. `elsewhere`: of one that another server has (R17), what its log says so far."""
        self.record = record
        """As it was asked for; of a run that has ended, also what came of it."""
        self._live = live
        self._log = log
        self._elsewhere = elsewhere

    def shown_as(self, record: RunRecord) -> "RunView":
        """The same run, with the names that whoever looks at it knows (S12)."""
        return RunView(record, self._live, self._log, self._elsewhere)

    @property
    def _transcript(self) -> Transcript | None:
        return self._live.recorder.transcript if self._live is not None else self._elsewhere

    @property
    def run(self) -> RunId:
        """Its id."""
        return self.record.id

    @property
    def status(self) -> RunStatus:
        """Its state in a word."""
        if self.outcome is not None:
            return outcome_name(self.outcome)
        if self._live is None:
            # What the store knows: of a run that another server has, or that a crash has cut off.
            return "waiting_approval" if self.approvals else self.record.status
        if self._live.state.phase is Phase.WAITING_APPROVAL and not self.approvals:
            return "running"  # Its question is not in the log yet.
        return self._live.state.status

    @property
    def is_queued(self) -> bool:
        """Does it wait for its turn?"""
        return self.status == "queued"

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: it has not."""
        transcript = self._transcript
        return transcript.outcome if transcript is not None else self.record.outcome

    @property
    def is_left(self) -> bool:
        """Has its server let go of it, so that it goes on when one is back (R16)?"""
        return self.is_elsewhere and self.record.on_restart == "resume"

    @property
    def is_elsewhere(self) -> bool:
        """Has it not ended, and is it not going on here?"""
        return self._live is None and self.outcome is None

    @property
    def model(self) -> str:
        """The model that is answering, or answered last; until one does, the one that was asked for."""
        transcript = self._transcript
        if transcript is not None:
            return transcript.model or self.record.model
        return self.record.answered_by or self.record.model

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        transcript = self._transcript
        return transcript.spending.usage if transcript is not None else self.record.usage

    @property
    def text(self) -> str:
        """The answer so far; of a run that has ended, its beginning."""
        transcript = self._transcript
        return transcript.text if transcript is not None else self.record.text

    @property
    def events(self) -> int:
        """How many events its log has."""
        transcript = self._transcript
        return transcript.events if transcript is not None else self.record.events

    @property
    def approvals(self) -> Sequence[WaitingApproval]:
        """The calls that wait for somebody's word."""
        if self._live is not None and self._live.state.phase is not Phase.WAITING_APPROVAL:
            return ()
        transcript = self._transcript
        return tuple(transcript.calls.approvals.values()) if transcript is not None else ()

    async def read_transcript(self) -> Transcript:
        """All that it has said and done so far.

        Raises:
            StoreUnavailableError: its log cannot be read now.
        """
        transcript = self._transcript
        return transcript if transcript is not None else await read_transcript(self._log, self.run)
