"""An MCP server made with the SDK, over stdio or HTTP (`new.py PORT`). Speaks the newest protocol."""

import asyncio
import os
import sys

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("new")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="who.am/i")
def who() -> str:
    """The process id."""
    return str(os.getpid())


@server.tool()
def environment(variable: str) -> str:
    """A variable."""
    return os.environ.get(variable, "not set")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG" * 30, format="png")


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("on purpose")


@server.tool()
async def wait(file: str) -> str:
    """Say in a file what becomes of it."""
    print("waiting", file=sys.stderr, flush=True)
    with open(file, "a") as log:
        log.write("began ")
        log.flush()
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            log.write("cancelled ")
            raise
    return "waited"


@server.tool()
async def learn(context: Context) -> str:
    """Gain a tool."""
    server.add_tool(lambda: "learnt", name="learnt")
    await context.notify_tools_changed()
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app = server.streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
    else:
        server.run("stdio")
