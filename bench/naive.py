"""What many servers do: the official SDK on one side, Starlette's StreamingResponse on the other. Run as a process."""

import sys
from collections.abc import AsyncIterator

import openai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

client = openai.AsyncOpenAI(base_url=sys.argv[2], api_key="k", max_retries=0)


async def relay(request: Request) -> StreamingResponse:
    body = await request.json()

    async def chunks() -> AsyncIterator[str]:
        stream = await client.chat.completions.create(model=body["model"], messages=body["messages"], stream=True)
        async for chunk in stream:
            yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


app = Starlette(routes=[Route("/v1/chat/completions", relay, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="error")
