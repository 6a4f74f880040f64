"""A process that appends for ever and prints each event's number once it is told that it is saved; to be killed."""

import asyncio
import sys
from functools import partial

from holdfast.errors import StoreError
from holdfast.events import Batch, TextAdded
from holdfast.ids import EventNumber, RunId, SessionId
from holdfast.store.records import RunRecord
from holdfast.store.sqlite import SqliteStore

AHEAD = 20


async def main(file: str, run: RunId) -> None:
    store = await SqliteStore.open(file)
    await store.create_run(RunRecord(id=run, session=SessionId("s"), surface="runs", model="demo/demo", created_at=1.0))
    room = asyncio.Semaphore(AHEAD)

    def tell(number: int, error: StoreError | None) -> None:
        assert error is None
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        room.release()

    number = 0
    while True:
        await room.acquire()
        events = [TextAdded(text=str(number))]
        store.append(run, Batch(EventNumber(number), 1.0, events), partial(tell, number))
        number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], RunId(sys.argv[2])))
