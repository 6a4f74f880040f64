"""The life of a run: its states, and what moves it from one to the next (R2-R6, R9, R11, R12).

                                        ┌─────answer─────┐
                                        v                │
    STARTING ──step──> QUEUED ──turn──> RUNNING ──ask──> WAITING_APPROVAL
        │                │                │                │
        └────interrupt───┴──> STOPPING <──┴────────────────┘
                                 │
    QUEUED, RUNNING, STOPPING ───┴──finish──> CLOSING ──close──> ENDED
                                                 │
    STARTING, STOPPING, CLOSING ─────────────────┴──withdraw──> WITHDRAWN

    STARTING, QUEUED, RUNNING, WAITING_APPROVAL ──hand_over──> LEAVING ──release──> HANDED_OVER
                                                                 │
                                                                 └──withdraw──> WITHDRAWN

    whatever has not come to an end ──lose──> LOST

The law:

1. A run has two sides: the work, drawn above, and its admission, which is PENDING until the store has SAVED or REFUSED
   it. The model is asked meanwhile; nothing of it is told, and no tool begins, before that is decided.
2. Whatever stops a run (a person, its last reader, a limit, a newer run, the server's end) interrupts it, once: the
   first reason counts, and none counts any more once the outcome is known.
3. A run that was saved ends as ENDED, with exactly one end in its log. One that was refused has never been: WITHDRAWN,
   and nothing of it is kept or told.
4. A run that may be resumed (R15) is let go of at the server's end, unsaved end and all: HANDED_OVER. Its log has no
   end; the next start, or another server, takes it up as a new life of the same run.
5. A run that another server may have (R17) is LOST: nothing more of it is written or told here.
6. CLOSING is left only when the admission is no longer PENDING: there is nothing to end before there is something kept.

What a run may do next is decided here, and nowhere else. Beside it stand the tasks that do it (`live`), and how far its
log has come (`log/recorder`). Knows no clock, no store, no task and no HTTP; above it is `live`.
"""

from enum import Enum, auto
from typing import Final, Literal

from holdfast.outcomes import Cancelled, LiveStatus


class Phase(Enum):
    """What a run is doing."""

    STARTING = auto()
    """It has its place in the server, and its task has not taken its first step."""
    QUEUED = auto()
    """It waits for its turn on the session (R11)."""
    RUNNING = auto()
    WAITING_APPROVAL = auto()
    """It waits for somebody's word on a tool call (R12)."""
    STOPPING = auto()
    """It was interrupted, and leaves whatever it is doing."""
    CLOSING = auto()
    """Its outcome is known, and its end is being saved."""
    LEAVING = auto()
    """The server is going down: it leaves whatever it is doing, and goes on elsewhere (R16)."""
    HANDED_OVER = auto()
    LOST = auto()
    """Others may go on with it, because this server was away for too long, or could not save it."""
    ENDED = auto()
    WITHDRAWN = auto()
    """It could not be saved at its start, or was somebody else's: it has never been."""


WORKING: Final = frozenset({Phase.QUEUED, Phase.RUNNING, Phase.WAITING_APPROVAL})
"""Its task waits for something, and can be cancelled."""


class Admission(Enum):
    """Whether the store has taken a run."""

    PENDING = auto()
    SAVED = auto()
    REFUSED = auto()


class Move(Enum):
    """What changes what a run is doing, and who does."""

    STEP = auto()
    """execute: its task has taken its first step; from here on it can be cancelled and will still be saved."""
    TURN = auto()
    """execute: the session is free."""
    ASK = auto()
    """the loop: somebody has to approve a call."""
    ANSWER = auto()
    """the loop: somebody has, or the time for it is over."""
    INTERRUPT = auto()
    """stop, the last reader, sweep, a run that replaces it, the server's end."""
    HAND_OVER = auto()
    """the server's end, for a run that may be resumed."""
    RELEASE = auto()
    """execute: all that it said is saved, and it is no longer this server's."""
    LOSE = auto()
    """membership: this server was fenced; execute: the store that others share cannot be written."""
    FINISH = auto()
    """execute: the work is over, and its outcome known."""
    CLOSE = auto()
    """execute: its end is saved and told."""
    WITHDRAW = auto()
    """start, or execute if that had begun: the store has refused it."""


NEXT: Final[dict[tuple[Phase, Move], Phase]] = {
    (Phase.STARTING, Move.STEP): Phase.QUEUED,
    (Phase.STARTING, Move.INTERRUPT): Phase.STOPPING,
    (Phase.STARTING, Move.WITHDRAW): Phase.WITHDRAWN,
    (Phase.QUEUED, Move.TURN): Phase.RUNNING,
    (Phase.QUEUED, Move.INTERRUPT): Phase.STOPPING,
    (Phase.QUEUED, Move.FINISH): Phase.CLOSING,
    (Phase.RUNNING, Move.ASK): Phase.WAITING_APPROVAL,
    (Phase.RUNNING, Move.INTERRUPT): Phase.STOPPING,
    (Phase.RUNNING, Move.FINISH): Phase.CLOSING,
    (Phase.WAITING_APPROVAL, Move.ANSWER): Phase.RUNNING,
    (Phase.WAITING_APPROVAL, Move.INTERRUPT): Phase.STOPPING,
    (Phase.STARTING, Move.HAND_OVER): Phase.LEAVING,
    (Phase.QUEUED, Move.HAND_OVER): Phase.LEAVING,
    (Phase.RUNNING, Move.HAND_OVER): Phase.LEAVING,
    (Phase.WAITING_APPROVAL, Move.HAND_OVER): Phase.LEAVING,
    (Phase.LEAVING, Move.RELEASE): Phase.HANDED_OVER,
    (Phase.LEAVING, Move.WITHDRAW): Phase.WITHDRAWN,
    (Phase.STOPPING, Move.FINISH): Phase.CLOSING,
    (Phase.STOPPING, Move.WITHDRAW): Phase.WITHDRAWN,
    (Phase.CLOSING, Move.CLOSE): Phase.ENDED,
    (Phase.CLOSING, Move.WITHDRAW): Phase.WITHDRAWN,
    (Phase.STARTING, Move.LOSE): Phase.LOST,
    (Phase.QUEUED, Move.LOSE): Phase.LOST,
    (Phase.RUNNING, Move.LOSE): Phase.LOST,
    (Phase.WAITING_APPROVAL, Move.LOSE): Phase.LOST,
    (Phase.STOPPING, Move.LOSE): Phase.LOST,
    (Phase.LEAVING, Move.LOSE): Phase.LOST,
    (Phase.CLOSING, Move.LOSE): Phase.LOST,
}
"""What a move makes of a run; what is not here cannot happen."""
_NEEDS: Final = {Move.CLOSE: Admission.SAVED, Move.RELEASE: Admission.SAVED, Move.WITHDRAW: Admission.REFUSED}
"""What the admission must be for a move."""

STATUS: Final[dict[Phase, LiveStatus]] = {
    Phase.STARTING: "queued",
    Phase.QUEUED: "queued",
    Phase.RUNNING: "running",
    Phase.WAITING_APPROVAL: "waiting_approval",
    Phase.STOPPING: "running",
    Phase.CLOSING: "running",
    Phase.LEAVING: "running",
    Phase.HANDED_OVER: "running",
    Phase.LOST: "running",
    Phase.ENDED: "running",
    Phase.WITHDRAWN: "running",
}
"""How a run is called for which nobody has read an outcome yet: it is told only once it is saved."""


class IllegalMoveError(Exception):
    """A move that the table does not have: a bug of ours."""


class RunState:
    """One run's state."""

    __slots__ = ("admission", "interruption", "phase")

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.admission = Admission.PENDING
        self.interruption: Cancelled | None = None
        """Why it was interrupted: the first reason."""

    def move(self, move: Move) -> None:
        """Go on as the table says.

        Raises:
            IllegalMoveError: it does not say.
        """
        reached = NEXT.get((self.phase, move))
        if reached is None or self.admission is not _NEEDS.get(move, self.admission):
            raise IllegalMoveError(
                f"{move.name} of a run that is {self.phase.name}, its admission {self.admission.name}"
            )
        self.phase = reached

    def interrupt(self, why: Cancelled) -> bool:
        """Interrupt it, for the first reason; False: it has been, or its outcome is known."""
        if (self.phase, Move.INTERRUPT) not in NEXT:
            return False
        self.interruption = why
        self.move(Move.INTERRUPT)
        return True

    def decide(self, admission: Literal[Admission.SAVED, Admission.REFUSED]) -> None:
        """The store has taken the run, or not; once.

        Raises:
            IllegalMoveError: it has been decided before.
        """
        if self.admission is not Admission.PENDING:
            raise IllegalMoveError(f"a run that is {self.admission.name} cannot become {admission.name}")
        self.admission = admission

    @property
    def status(self) -> LiveStatus:
        """In a word, for people and the API."""
        return STATUS[self.phase]

    @property
    def is_going(self) -> bool:
        """Can it still be interrupted, or told something (R13)?"""
        return (self.phase, Move.INTERRUPT) in NEXT

    def is_lost(self) -> bool:
        """May another server have it?"""
        return self.phase is Phase.LOST

    def hand_over(self) -> bool:
        """Let go of it at the server's end; False: it has ended, or is ending."""
        if (self.phase, Move.HAND_OVER) not in NEXT:
            return False
        self.move(Move.HAND_OVER)
        return True
