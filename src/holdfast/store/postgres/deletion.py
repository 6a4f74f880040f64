"""Deleting runs, as a step of a larger change: retention, the end of a session. Sits on connections/."""

from holdfast.store.postgres.connections.database import DatabaseConnection


async def delete_runs(connection: DatabaseConnection, query: str, *values: object) -> int:
    """Forget runs, given by a query for (key, id), with all that refers to them but messages; how many."""
    found = await connection.fetch(query, *values)
    if not found:
        return 0
    keys, runs = [row[0] for row in found], [row[1] for row in found]
    await connection.execute("DELETE FROM holdfast.runs WHERE key = ANY ($1::bigint[])", keys)
    await connection.execute("DELETE FROM holdfast.log WHERE run = ANY ($1::bigint[])", keys)
    await connection.execute("DELETE FROM holdfast.responses WHERE run = ANY ($1::bigint[])", keys)
    await connection.execute("DELETE FROM holdfast.idempotency WHERE run = ANY ($1::text[])", runs)
    await connection.execute("DELETE FROM holdfast.conversations WHERE run = ANY ($1::text[]) AND NOT kept", runs)
    return len(found)
