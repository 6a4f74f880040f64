"""A process whose files may not grow for a while: what the store says, what it keeps, and that it recovers."""

import asyncio
import resource
import sys

from holdfast.errors import StoreUnavailableError
from holdfast.store.sqlite import SqliteStore
from tests.store.store_world import append, run_record, texts, whole_log

ROOM = 400_000


async def main(file: str) -> None:
    store = await SqliteStore.open(file)
    record = run_record()
    await store.create_run(record)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    saved = 0
    try:
        while True:
            await append(store, record.id, texts(saved, "x" * 10_000))
            saved += 1
    except StoreUnavailableError as error:
        print(f"{type(error).__name__}: {error}")
    try:
        await store.create_run(run_record(said="y" * 2 * ROOM))
    except StoreUnavailableError:
        pass
    else:
        raise AssertionError("the limit does not hold")
    assert len(await whole_log(store, record.id)) == saved
    print("nothing was half saved")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(saved, saved + 20):
        await append(store, record.id, texts(number, "x" * 10_000))
    assert len(await whole_log(store, record.id)) == saved + 20
    assert [run.id for run in await store.unfinished_runs()] == [record.id]
    await store.aclose()
    print("recovered")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
