"""The tools of MCP servers, named mcp__<server>__<tool>.

A server that is slow, broken or gone is just a set without tools: it never holds up the start, and a run for a few
seconds at most, while it is starting. Above: the toolbox. Below: server and content.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.config import McpSettings
from holdfast.errors import ConfigError, ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import check_arguments, unknown_tool
from holdfast.tools.mcp.content import result_text, tool_name, tool_spec
from holdfast.tools.mcp.server import CONNECT_SECONDS, McpServer
from holdfast.tools.output import cut_line
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.sandbox.choose import McpSandboxes


class McpStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is, for people."""

    connected: bool
    tools: int = 0
    error: str = ""


class McpTools:
    """The tools of all configured servers that are there now."""

    def __init__(
        self,
        servers: Mapping[str, McpSettings],
        *,
        sandboxes: McpSandboxes | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        """Prepare; nothing is connected to before the first `start`, `specs` or `settle`.

        Raises:
            ConfigError: a server has neither a command nor a URL, or both.
        """
        for name, settings in servers.items():
            if bool(settings.command) == bool(settings.url):
                raise ConfigError(f"[mcp.{name}] needs either `command` or `url`.")
        self._servers = [
            McpServer(name, each, sandboxes=sandboxes, connect_seconds=connect_seconds)
            for name, each in servers.items()
        ]
        self._started = False
        self._seen: dict[str, tuple[McpServer, str]] = {}
        """Every tool that ever was, so that a call to one that has gone can say why."""
        self._made_from: tuple[object, ...] = ()
        self._specs: tuple[ToolSpec, ...] = ()

    def start(self) -> None:
        """Begin to connect to all servers; returns at once. Needs a running event loop."""
        if not self._started:
            self._started = True
            for server in self._servers:
                server.start()

    async def settle(self, seconds: float) -> None:
        """Wait until each server has been tried once, for at most so long. For those who can wait: doctor, tests."""
        self.start()
        try:
            async with asyncio.timeout(seconds):
                for server in self._servers:
                    await server.settled.wait()
        except TimeoutError:
            pass  # the status says which are not connected

    async def arrive(self) -> Sequence[str]:
        """Wait for servers that are starting or coming again; what to know of each that is still not there."""
        self.start()
        for server in self._servers:
            # One after the other: each has a point in time until which it is waited for.
            await server.arrive()
        return [
            f"The MCP server {name!r} is not connected, so its tools are missing: {problem}"
            for name, problem in self.problems().items()
        ]

    def problems(self) -> dict[str, str]:
        """Why a server is not connected, with the last that its program wrote, for each that is not."""
        return {server.name: server.problem for server in self._servers if not server.connected}

    def tool_names(self) -> dict[str, list[str]]:
        """The tools of each server, as the server calls them."""
        return {server.name: [tool.name for tool in server.tools] for server in self._servers}

    def status(self) -> dict[str, McpStatus]:
        """Each server by name."""
        return {
            server.name: McpStatus(connected=server.connected, tools=len(server.tools), error=server.error)
            for server in self._servers
        }

    def specs(self) -> Sequence[ToolSpec]:
        """The tools of the servers that are connected. Asking for them is what starts to connect."""
        self.start()
        current = tuple(server.tools for server in self._servers)
        # Asked for at every turn, and rarely changed: compare the identity of what they were made from.
        if len(current) != len(self._made_from) or any(
            a is not b for a, b in zip(current, self._made_from, strict=True)
        ):
            self._made_from = current
            self._specs = tuple(self._make_specs())
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """`mcp__files__read notes.txt`: the tool and its first text."""
        about = next((value for value in arguments.values() if isinstance(value, str)), "")
        return cut_line(f"{name} {about}", 80)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a tool of a server.

        Raises:
            ToolError: there is no such tool, or its server is not there, has refused, or was lost.
        """
        schema = next((spec.parameters for spec in self.specs() if spec.name == name), None)
        found = self._seen.get(name)
        if found is None:
            raise unknown_tool(name, dict.fromkeys(spec.name for spec in self.specs()))
        server, tool = found
        if schema is None and server.connected:
            raise ToolError(f"The MCP server {server.name!r} no longer has the tool {tool}.")
        if schema is not None:
            check_arguments(name, schema, arguments)
        result = await server.call(tool, arguments)
        return ToolResult(output=result_text(result), failed=result.is_error)

    async def aclose(self) -> None:
        """Disconnect from all servers and end their processes."""
        await asyncio.gather(*(server.aclose() for server in self._servers))

    def _make_specs(self) -> list[ToolSpec]:
        specs: dict[str, ToolSpec] = {}
        for server in self._servers:
            for tool in server.tools:
                name = tool_name(server.name, tool.name, specs)
                specs[name] = tool_spec(name, tool)
                self._seen[name] = (server, tool.name)
        return list(specs.values())
