"""The floor: a raw relay that passes bytes on and understands nothing (aiohttp, uvloop). Run as a process."""

import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

UPSTREAM = web.AppKey("upstream", aiohttp.ClientSession)


async def relay(request: web.Request) -> web.StreamResponse:
    session = request.app[UPSTREAM]
    async with session.post(f"{sys.argv[2]}/chat/completions", data=await request.read()) as upstream:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for data in upstream.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def main() -> None:
    app = web.Application()
    app[UPSTREAM] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    app.router.add_post("/v1/chat/completions", relay)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]), backlog=4096).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
