"""Any weather between several servers and their database, played again by its seed (R17)."""

import warnings
from collections.abc import Callable, Iterator

import pytest

from holdfast.ids import RunId, SessionId
from holdfast.runs.replicas.lanes import SharedLanes
from holdfast.store.coordination import Notice, ReplicaId, TurnCame
from holdfast.store.memory.shared import SharedMemory, SharedMemoryStore
from tests.simulation.schedule import play

SCHEDULES = 60
TRIES = 150
"""How many schedules a planted fault may get away with."""


@pytest.fixture(autouse=True)
def _what_is_killed_leaves_loose_ends() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_whatever_happens_between_servers_and_database_the_law_is_kept() -> None:
    """R17.a, R17.e, R17.f: frozen, killed, cut off, replaced, slow, deaf; nothing is lost or done twice."""
    for seed in range(SCHEDULES):
        play(seed)


def test_a_schedule_is_played_again_exactly() -> None:
    """By its seed: what went wrong once can be looked at."""
    logs = []
    for _ in range(2):
        tables = play(11).site.database.tables
        order = {run: f"run{number}" for number, run in enumerate(tables.runs)}
        logs.append([(order[run], [type(e) for b in kept.log for e in b.events]) for run, kept in tables.runs.items()])
    assert logs[0] == logs[1]


class LeaseNotChecked(SharedMemoryStore):
    """Writes what is not its own any more."""

    def _require_mine(self, run: RunId) -> None:
        pass


class FenceForgotten(SharedMemoryStore):
    """Takes the runs of a server that is away, and does not keep it from writing."""

    async def fence_expired(self) -> int:
        database, now = self._database, self._clock.now()
        for replica, member in database.members.items():
            if member.lease_until < now and replica != self.me:
                database.fence(replica)
                member.is_fenced = False
        return 0

    def _require_mine(self, run: RunId) -> None:
        self._require_unfenced()


class LaneReleasedTooEarly(SharedMemoryStore):
    """A run that nobody has for a moment has lost its place."""

    async def is_turn(self, run: RunId) -> bool:
        owners = self._database.owners
        if run not in owners:
            return False
        lane = self._database.lane(SessionId(self._tables.runs[run].record.session))
        return [other for other in lane if owners[other] is not None or other == run][:1] == [run]


class DeafDatabase(SharedMemoryStore):
    """Never says whose turn it is."""

    def __init__(self, database: SharedMemory) -> None:
        super().__init__(database)
        post = database.post

        def without_turns(to: ReplicaId, notice: Notice) -> None:
            if not isinstance(notice, TurnCame):
                post(to, notice)

        database.post = without_turns  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [LeaseNotChecked, FenceForgotten, LaneReleasedTooEarly, DeafDatabase])
def test_a_planted_fault_is_found(
    fault: Callable[[SharedMemory], SharedMemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17.a: the simulation is worth nothing if it cannot fail."""
    if fault is DeafDatabase:
        # A lost notice alone costs a moment, because everybody looks again; without that it costs a run.
        monkeypatch.setattr(SharedLanes, "look_again", lambda self: None)
    for seed in range(TRIES):
        try:
            play(seed, fault)
        except Exception:
            return
    pytest.fail(f"{fault.__name__} was not found in {TRIES} schedules")
