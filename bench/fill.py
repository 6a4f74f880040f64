"""Fills a store with finished runs, through the store itself."""

import asyncio
from pathlib import Path

from holdfast.events import Answered, Batch, RunEnded, RunStarted, TextAdded, TurnStarted
from holdfast.ids import EventNumber, SessionId, make_run_id
from holdfast.messages import AssistantMessage, Text, Usage, user_says
from holdfast.outcomes import Completed
from holdfast.store.port import Store
from holdfast.store.records import RunEnding, RunRecord
from holdfast.store.sqlite import SqliteStore


async def fill_file(database: Path, runs: int, words: int = 50) -> None:
    """As `fill`, a file."""
    store = await SqliteStore.open(database)
    await fill(store, runs, words)
    await store.aclose()


async def fill(store: Store, runs: int, words: int = 50) -> None:
    """So many runs of so many words each."""
    for start in range(0, runs, 200):
        await asyncio.gather(*(_one(store, number, words) for number in range(start, min(start + 200, runs))))


async def _one(store: Store, number: int, words: int) -> None:
    run, session = make_run_id(), SessionId(f"filled-{number % 1000}")
    asked, said = user_says("go"), AssistantMessage(parts=(Text(text=" word" * words),))
    usage = Usage(input_tokens=3, output_tokens=words)
    record = RunRecord(id=run, session=session, surface="chat", model="m", created_at=1e9 + number, input=(asked,))
    await store.create_run(record)
    events = [
        RunStarted(run=run, session=session, model="m"),
        TurnStarted(turn=0, model="m"),
        *(TextAdded(text=" word") for _ in range(words)),
        Answered(finish="stop", model="m", usage=usage),
        RunEnded(outcome=Completed(), usage=usage),
    ]
    ending = RunEnding(
        outcome=Completed(), usage=usage, ended_at=2e9 + number, messages=(asked, said), text=said.text[:500]
    )
    await store.end_run(run, Batch(EventNumber(0), 1e9, events), ending)
