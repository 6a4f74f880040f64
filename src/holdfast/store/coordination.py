"""The port to what several servers on one store agree on (R17): who is there, who has which run, who wants what.

The law:

1. A server that joins has a lease, which it renews. One whose lease has ended may be fenced by any other; the fence
   waits for its writes that are under way, and none lands after it. It may join again, as somebody new.
2. A run that has not ended has one owner, or none. Only its owner, unfenced, appends to it and ends it. It gets another
   only after its owner was fenced or has let go of it.
3. Commands are rows. Notices are hints: whatever one says can be found in the store too, so that one that is lost costs
   a moment and nothing else.
4. Who is next on a session is decided where runs are created and ended, one after the other (R11).

A store that several servers may share implements this beside `Store`; the other stores have one server, and nobody to
agree with. Two implementations: in memory, for simulations, and on PostgreSQL; one test suite runs over both. Sits on
the store's port.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NewType, Protocol

import msgspec

from holdfast.events import ApprovalAnswered, ApprovalAsked, ApprovedBy, Event, TurnStarted
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import UserMessage
from holdfast.outcomes import Cancelled, LiveStatus
from holdfast.store.accounts import Allowance
from holdfast.store.port import Store
from holdfast.store.records import IdempotencyKey, LanePolicy, Reserved, RunRecord

ReplicaId = NewType("ReplicaId", int)
"""One server from the time it joined to the time it left or was fenced."""
CommandId = NewType("CommandId", str)


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is there."""

    id: ReplicaId
    name: str
    url: str
    """Where it listens, for people."""
    version: str
    started_at: float
    lease_seconds: float
    """How long its lease still holds; negative: it has ended that long ago."""
    runs: int
    """How many it has."""


# What one server asks of the one that has a run


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Interrupt it (R5, R11)."""

    why: Cancelled


class Steer(msgspec.Struct, frozen=True, kw_only=True, tag="steer"):
    """Say something to it (R13)."""

    message: UserMessage


class Decide(msgspec.Struct, frozen=True, kw_only=True, tag="decide"):
    """Approve or deny a call that waits, or the only one (R12)."""

    call: CallId | None
    approved: bool
    by: ApprovedBy


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of a run, wherever that is."""

    id: CommandId
    run: RunId
    wish: Stop | Steer | Decide


class CommandRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error, as its asker is to be told of it."""

    message: str
    status: int
    code: str


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a command."""

    done: bool = True
    """Was there something to do?"""
    call: CallId | None = None
    """The call that was decided."""
    refusal: CommandRefusal | None = None


# What servers tell each other


class Grown(msgspec.Struct, frozen=True, tag="grown"):
    """A run that you read has more events, up to this number."""

    run: RunId
    end: EventNumber


class Reading(msgspec.Struct, frozen=True, tag="reading"):
    """Somebody of mine reads your run; said again while it is so."""

    run: RunId
    by: ReplicaId


class LeftReading(msgspec.Struct, frozen=True, tag="left"):
    """Nobody of mine reads your run any more."""

    run: RunId
    by: ReplicaId


class Commanded(msgspec.Struct, frozen=True, tag="commanded"):
    """There is a command for a run of yours."""

    run: RunId


class CommandDone(msgspec.Struct, frozen=True, tag="done"):
    """Your command has its answer."""

    id: CommandId


class TurnCame(msgspec.Struct, frozen=True, tag="turn"):
    """Your run may be the next on its session."""

    run: RunId


class Freed(msgspec.Struct, frozen=True, tag="freed"):
    """There are runs that nobody has."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """Runs have another owner: whoever reads any looks again who has them."""


class Missed(msgspec.Struct, frozen=True, tag="missed"):
    """Said by the store itself: notices may have been lost, so look at everything again."""


Notice = Grown | Reading | LeftReading | Commanded | CommandDone | TurnCame | Freed | Taken | Missed


def live_status(events: Sequence[Event]) -> LiveStatus | None:
    """What a run does after these events of its log, where they change that: kept with the run, for lists elsewhere."""
    status: LiveStatus | None = None
    for event in events:
        kind = type(event)
        if kind is TurnStarted or kind is ApprovalAnswered:
            status = "running"
        elif kind is ApprovalAsked:
            status = "waiting_approval"
    return status


class Coordination(Protocol):
    """What a shared store does beside keeping things. Raises as the store's port; and FencedError where it says so."""

    @property
    def me(self) -> ReplicaId | None:
        """This server, as the others know it; None: it has not joined."""
        ...

    # Who is there

    async def join(self, name: str, url: str, version: str) -> ReplicaId:
        """Be there, as somebody new, with a fresh lease. Whoever this server was before is fenced."""
        ...

    async def renew(self) -> None:
        """Renew the lease.

        Raises:
            FencedError: somebody has fenced this server.
        """
        ...

    async def leave(self) -> None:
        """Be there no more. What runs this server still has are nobody's."""
        ...

    async def replicas(self) -> list[Replica]:
        """Those that are there, in the order in which they joined."""
        ...

    async def fence_expired(self) -> int:
        """Fence every other server whose lease has ended; how many there were. Their runs are nobody's."""
        ...

    # Who has what

    async def claim(self, limit: int) -> list[RunRecord]:
        """Take runs that nobody has, the oldest first, each with its continuation; this server owns them now.

        Raises:
            FencedError: this server may own nothing.
        """
        ...

    async def release(self, run: RunId) -> None:
        """Let go of a run that has not ended, and tell everybody.

        Raises:
            FencedError: it is not this server's any more.
        """
        ...

    async def owned(self) -> list[RunId]:
        """The runs that this server has, as the others see it."""
        ...

    async def owners(self, runs: Sequence[RunId]) -> Mapping[RunId, ReplicaId | None]:
        """Who has those of these runs that have not ended; None: nobody."""
        ...

    async def log_end(self, run: RunId) -> EventNumber:
        """The number that the next event of a log gets."""
        ...

    # Sessions and requests

    async def create_in_lane(
        self,
        record: RunRecord,
        key: IdempotencyKey | None,
        policy: LanePolicy,
        max_queued: int,
        allowance: Allowance | None = None,
    ) -> Reserved | Sequence[RunId]:
        """As `RunLog.create_run`, for a run that takes its place on its session (R11): those before it, in order.

        Raises:
            SessionBusyError: there is one, and the policy is `reject`.
            LimitReachedError: there are more than `max_queued` waiting, and the policy is `wait`; or as
                `check_allowance`.
        """
        ...

    async def is_turn(self, run: RunId) -> bool:
        """Is it the first of its session that has not ended?"""
        ...

    async def active_in(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunRecord]:
        """The runs that sessions are busy with, wherever those are: the first in the lane of each, else any."""
        ...

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started and that has not ended (C15)."""
        ...

    # Commands

    async def send(self, command: Command) -> None:
        """Save a command, and tell whoever has its run."""
        ...

    async def commands(self) -> list[Command]:
        """What was asked of this server's runs and has no answer yet, in order."""
        ...

    async def answer(self, command: CommandId, answer: CommandAnswer) -> None:
        """Answer a command, and tell whoever asked; the first answer counts."""
        ...

    async def find_answer(self, command: CommandId) -> CommandAnswer | None:
        """What came of a command; None: nothing yet, or too long ago."""
        ...

    # Notices

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Have every notice that comes heard, on the event loop."""
        ...

    def tell(self, to: ReplicaId | None, notice: Notice) -> None:
        """Tell another server something, or all of them. Returns at once, and may be lost."""
        ...

    def watch(self, run: RunId, by: ReplicaId) -> None:
        """From now on every commit that makes a run's log longer says so to that server (`Grown`)."""
        ...

    def unwatch(self, run: RunId, by: ReplicaId) -> None:
        """No longer."""
        ...

    # Upkeep

    async def may_keep_house(self) -> bool:
        """Is it this server that looks after old logs (R14)? One at a time is."""
        ...


class SharedStore(Store, Coordination, Protocol):
    """A store that any number of servers use at once."""
