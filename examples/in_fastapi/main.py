"""Holdfast inside a FastAPI app: the whole API below /agent, and runs as objects beside it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import holdfast


async def agent(run: holdfast.Run) -> AsyncIterator[str]:
    yield f"You said: {run.input}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with holdfast.open("sqlite:///agent.db", agents=[agent]) as server:
        app.state.holdfast = server
        app.mount("/agent", server.app)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/hello")
async def hello(text: str) -> dict[str, str]:
    answer = await app.state.holdfast.ask(text)
    return {"text": answer.text, "outcome": answer.outcome}
