"""Several servers on one database (R17): the port of coordination, on PostgreSQL.

Who is there is a row each, with a lease by the database's clock; who has a run is a column of it. Every write of a run
holds its server's place (`holdfast.hold`, in the functions of sql/), so that none lands after the server was fenced.
The lease and the notices go over the link, which waits behind nothing; everything else through the pool. Its twin is
memory/shared.py; commands are in commands.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import FencedError
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.store.coordination import Notice, Replica, ReplicaId
from holdfast.store.postgres.connections.database import DatabaseConnection
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import from_text, to_text
from holdfast.store.postgres.coordination.link import ServerLink
from holdfast.store.postgres.rows import SELECT_CONTINUATIONS, SELECT_RUNS, as_run, as_unfinished
from holdfast.store.postgres.saving.writer import PostgresWriter
from holdfast.store.records import RunRecord
from holdfast.store.refusals import not_mine

_RENEW = """
    UPDATE holdfast.replicas SET lease_until = clock_timestamp() + make_interval(secs => $2) WHERE id = $1 RETURNING id
    """
_REPLICAS = """
    SELECT id, name, url, version, extract(epoch FROM started_at)::double precision,
        extract(epoch FROM lease_until - clock_timestamp())::double precision,
        (SELECT count(*) FROM holdfast.runs WHERE owner = replicas.id AND outcome IS NULL)
    FROM holdfast.replicas ORDER BY id
    """
_IS_TURN = """
    SELECT in_lane AND NOT EXISTS (
        SELECT 1 FROM holdfast.runs AS before
        WHERE before.session = runs.session AND before.in_lane AND before.outcome IS NULL AND before.key < runs.key)
    FROM holdfast.runs WHERE id = $1 AND outcome IS NULL
    """
_ACTIVE = f"""
    {SELECT_RUNS} WHERE key IN (
        SELECT DISTINCT ON (session) key FROM holdfast.runs WHERE session = ANY ($1::text[]) AND outcome IS NULL
        ORDER BY session, in_lane DESC, key)
    """
_LOG_END = """
    SELECT first + count FROM holdfast.log
    WHERE run = (SELECT key FROM holdfast.runs WHERE id = $1) ORDER BY first DESC LIMIT 1
    """


class PostgresServers:
    """This server's place among the others."""

    _writer: PostgresWriter
    _pool: ConnectionPool
    _link: ServerLink
    _lease_seconds: float
    _has_left = False

    @property
    def me(self) -> ReplicaId | None:
        """This server, as the others know it; None: it has not joined."""
        return None if self._has_left else self._writer.me

    # Who is there

    async def join(self, name: str, url: str, version: str) -> ReplicaId:
        """Be there, as somebody new."""
        query = "SELECT holdfast.join($1, $2, $3, $4, $5)"
        said = (to_text(name), to_text(url), to_text(version), self._lease_seconds)
        before = self._writer.me
        me = ReplicaId(await self._pool.change(lambda connection: connection.fetchval(query, before, *said)))
        # From here on whatever is still on its way of who this server was is refused: none of those runs is its own.
        self._writer.me, self._has_left = me, False
        await self._link.listen_as(me)
        return me

    async def renew(self) -> None:
        """Renew the lease."""
        if self.me is None or await self._link.fetchval(_RENEW, self.me, self._lease_seconds) is None:
            raise FencedError

    async def leave(self) -> None:
        """Be there no more."""
        me = self.me
        if me is None:
            return
        self._has_left = True

        async def leave(connection: DatabaseConnection) -> None:
            await connection.fetchval("SELECT holdfast.fence($1)", me)
            await connection.execute("""SELECT pg_notify('holdfast', '[{"type":"freed"}]')""")

        await self._pool.change(leave)

    async def replicas(self) -> list[Replica]:
        """Those that are there."""
        return [
            Replica(
                id=ReplicaId(number),
                name=from_text(name),
                url=from_text(url),
                version=from_text(version),
                started_at=started_at,
                lease_seconds=lease_seconds,
                runs=runs,
            )
            for number, name, url, version, started_at, lease_seconds, runs in await self._fetch(_REPLICAS)
        ]

    async def fence_expired(self) -> int:
        """Fence those whose lease has ended."""
        # Asked first: nearly always there is none, and nothing to be committed.
        query = "SELECT 1 FROM holdfast.replicas WHERE lease_until < clock_timestamp() AND id IS DISTINCT FROM $1"
        if not await self._fetch(query, self.me):
            return 0
        fence = "SELECT holdfast.fence_expired($1)"
        return int(await self._pool.change(lambda connection: connection.fetchval(fence, self.me)))

    # Who has what

    async def claim(self, limit: int) -> list[RunRecord]:
        """Take runs that nobody has."""
        if self.me is not None and not await self._fetch(
            "SELECT 1 FROM holdfast.runs WHERE owner IS NULL AND outcome IS NULL "
            "UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM holdfast.replicas WHERE id = $1) LIMIT 1",
            self.me,
        ):
            return []

        async def claim(connection: DatabaseConnection) -> list[RunRecord]:
            keys = await connection.fetchval("SELECT holdfast.claim($1, $2)", self.me, limit)
            if keys is None:
                raise FencedError
            rows = await connection.fetch(f"{SELECT_CONTINUATIONS} WHERE key = ANY ($1::bigint[]) ORDER BY key", keys)
            return [await as_unfinished(connection, row) for row in rows]

        claimed = await self._pool.change(claim)
        for record in claimed:
            # Whoever read it at its last owner's comes again.
            self._writer.unwatch(record.id)
        return claimed

    async def release(self, run: RunId) -> None:
        """Let go of a run."""
        query = "SELECT holdfast.release($1, $2)"
        async with self._writer.alone(run):
            me = self._writer.me
            if not await self._pool.change(lambda connection: connection.fetchval(query, me, to_text(run))):
                raise not_mine(run)
        self._writer.unwatch(run)

    async def owned(self) -> list[RunId]:
        """The runs that this server has."""
        query = "SELECT id FROM holdfast.runs WHERE owner = $1 AND outcome IS NULL ORDER BY key"
        return [RunId(from_text(run)) for (run,) in await self._fetch(query, self.me)]

    async def owners(self, runs: Sequence[RunId]) -> Mapping[RunId, ReplicaId | None]:
        """Who has those that have not ended."""
        query = "SELECT id, owner FROM holdfast.runs WHERE id = ANY ($1::text[]) AND outcome IS NULL"
        rows = await self._fetch(query, [to_text(run) for run in runs])
        return {RunId(from_text(run)): None if owner is None else ReplicaId(owner) for run, owner in rows}

    async def log_end(self, run: RunId) -> EventNumber:
        """The number that the next event of a log gets."""
        rows = await self._fetch(_LOG_END, to_text(run))
        return EventNumber(rows[0][0] if rows else 0)

    # Sessions and requests; `create_in_lane` is in runs.py

    async def is_turn(self, run: RunId) -> bool:
        """Is it the first of its session that has not ended?"""
        rows = await self._fetch(_IS_TURN, to_text(run))
        return bool(rows) and bool(rows[0][0])

    async def active_in(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunRecord]:
        """The runs that sessions are busy with."""

        async def read(connection: DatabaseConnection) -> list[RunRecord]:
            rows = await connection.fetch(_ACTIVE, [to_text(session) for session in sessions])
            return [await as_run(connection, row) for row in rows]

        return {record.session: record for record in await self._pool.read(read)}

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started and that has not ended."""
        query = """
            SELECT id FROM holdfast.runs WHERE fingerprint = $1 AND fingerprint <> '' AND outcome IS NULL
            ORDER BY key DESC LIMIT 1
            """
        rows = await self._fetch(query, to_text(fingerprint))
        return RunId(from_text(rows[0][0])) if rows else None

    # Notices

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Have every notice that comes heard."""
        self._link.listen(hear)

    def tell(self, to: ReplicaId | None, notice: Notice) -> None:
        """Tell another server something, or all of them."""
        self._link.tell(to, notice)

    def watch(self, run: RunId, by: ReplicaId) -> None:
        """Tell that server of every commit."""
        self._writer.watch(run, by)

    def unwatch(self, run: RunId, by: ReplicaId) -> None:
        """No longer."""
        self._writer.unwatch(run, by)

    # Upkeep

    async def may_keep_house(self) -> bool:
        """One at a time."""
        query = "SELECT holdfast.may_keep_house($1)"
        return bool(await self._pool.change(lambda connection: connection.fetchval(query, self.me)))

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        return await self._pool.read(lambda connection: connection.fetch(query, *arguments))
