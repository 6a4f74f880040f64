"""One MCP server: a task that connects, keeps the session, and connects again when it is lost.

The task owns the connection from start to end, child process included; calls from elsewhere only borrow it. The SDK is
imported when the first server is connected to, in a thread, because that takes a second. Below the MCP tools.
"""

import asyncio
import importlib
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import anyio

from holdfast.config import McpSettings
from holdfast.errors import ConfigError, ToolError
from holdfast.tools.mcp.secret_values import SecretValues
from holdfast.tools.mcp.stderr import ServerStderr
from holdfast.tools.mcp.watched_stream import watched
from holdfast.tools.sandbox.choose import McpSandboxes
from holdfast.tools.sandbox.sandboxes import Launch

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport
    from mcp.client.session import IncomingMessage
    from mcp.types import CallToolResult, Tool

CONNECT_SECONDS: Final = 30.0
CHECK_SECONDS: Final = 30.0
"""How often an idle server over HTTP is asked for its tools: nothing else says that it has gone."""
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 10.0
MAX_PAGES: Final = 100
_log: Final = logging.getLogger(__name__)


class McpServer:
    """A server that may or may not be there."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        sandboxes: McpSandboxes | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.name = name
        self.error = f"it is still starting; a run waits {settings.start_seconds:g} s (mcp.{name}.start_seconds)"
        """Why it is not connected; empty while it is."""
        self.tools: tuple[Tool, ...] = ()
        """None while it is not connected."""
        self.settled = asyncio.Event()
        """It is connected, or could not be. Not set while it starts, and after a loss until it was tried again."""
        self._settings = settings
        self._sandboxes = sandboxes
        self._connect_seconds = connect_seconds
        self._secrets = SecretValues(settings)
        self._stderr = ServerStderr(name, self._secrets)
        self._awaited_until = 0.0
        """By the loop's clock: who needs its tools waits until then for it to settle."""
        self._was_connected = False
        self._client: Client | None = None
        self._look_again = asyncio.Event()
        """Something has happened: the tools have changed, a call has failed, or the connection has ended."""
        self._calls = 0
        """How many are running: meanwhile silence is no sign of death."""
        self._unanswered = False
        """The tools were asked for during a call, and did not come."""
        self._lost = False
        self._closing = False
        self._owner: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Can it be called now?"""
        return self._client is not None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._expect()
        self._owner = asyncio.get_running_loop().create_task(self._keep_connected(), name=f"mcp {self.name}")

    async def arrive(self) -> None:
        """Wait while it starts, or comes again, for its `start_seconds` in all."""
        try:
            async with asyncio.timeout_at(self._awaited_until):
                await self.settled.wait()
        except TimeoutError:
            pass  # `problem` says so

    @property
    def problem(self) -> str:
        """Why it is not connected, and what its program said; empty while it is."""
        if self.connected:
            return ""
        said = self._stderr.last_words
        return f"{self.error.rstrip('.')}." + (f' It wrote: "{said}".' if said else "")

    def _expect(self) -> None:
        """From now on it should be there before long."""
        self.settled.clear()
        self._awaited_until = asyncio.get_running_loop().time() + self._settings.start_seconds

    async def call(self, tool: str, arguments: dict[str, Any]) -> "CallToolResult":
        """Call a tool of the server.

        Raises:
            ToolError: it is not connected, has refused, or was lost during the call.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        client = self._client
        if client is None:
            raise self._not_connected()
        self._calls += 1
        try:
            return await client.call_tool(tool, arguments)
        except asyncio.CancelledError:
            self._look_again.set()  # it may have taken too long because the server is stuck
            raise
        except MCPError as error:
            self._look_again.set()
            if error.code == CONNECTION_CLOSED:
                raise self._lost_meanwhile(tool) from error
            raise ToolError(f"The MCP server {self.name!r} refused {tool}: {self._describe(error)}") from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            self._look_again.set()
            raise self._lost_meanwhile(tool) from error
        except (RuntimeError, ValueError) as error:  # an answer against the protocol, or against the tool's own schema
            raise ToolError(
                f"The MCP server {self.name!r} answered {tool} with something that cannot be read: "
                f"{self._describe(error)} It may have been carried out."
            ) from error
        finally:
            self._calls -= 1
            if self._unanswered:
                self._look_again.set()

    async def aclose(self) -> None:
        """Disconnect, and end the child process if there is one."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        # Both, because a cancellation that comes while the SDK is closing a connection is lost in there.
        self._closing = True
        self._look_again.set()
        owner.cancel()
        done, _ = await asyncio.wait({owner}, timeout=CLOSE_SECONDS)
        if not done:
            _log.warning("MCP server %s does not let go; leaving it", self.name)
            owner.cancel()
            await asyncio.wait({owner}, timeout=1)

    async def _keep_connected(self) -> None:
        wait_seconds = FIRST_WAIT_SECONDS
        loop = asyncio.get_running_loop()
        while not self._closing:
            started = loop.time()
            try:
                await self._connect_once()
            except Exception as error:
                # The boundary to somebody else's program, which may fail in any way: told by `error`, and tried again.
                self.error = self._describe(error)
                _log.warning("MCP server %s: %s", self.name, self.problem)
            finally:
                self._client = None
                self.tools = ()
                if not self._was_connected:
                    self.settled.set()
            if loop.time() - started > LONGEST_WAIT_SECONDS:
                wait_seconds = FIRST_WAIT_SECONDS
            if not self._closing:
                await asyncio.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * 2, LONGEST_WAIT_SECONDS)

    async def _connect_once(self) -> None:
        """Connect, and return or raise when the connection is lost."""
        await asyncio.to_thread(importlib.import_module, "mcp")
        from mcp import Client

        self._lost = self._unanswered = self._was_connected = False
        self._look_again.clear()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._connect_seconds):
                transport = await self._open_transport(stack)
                client = Client(watched(transport, self._end), message_handler=self._take_message, cache=None)
                await stack.enter_async_context(client)
                self.tools = await _list_tools(client)
            self._client, self.error, self._was_connected = client, "", True
            self.settled.set()
            _log.info("MCP server %s: connected, %d tools", self.name, len(self.tools))
            try:
                async with asyncio.TaskGroup() as tasks:
                    listening = tasks.create_task(self._listen(client))
                    await self._watch(client)
                    listening.cancel()
            finally:
                self._client = None
                if self.settled.is_set():
                    self._expect()

    async def _watch(self, client: "Client") -> None:
        """Look at the server when there is a reason to, and now and then; raise when it is gone."""
        while not (self._lost or self._closing):
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._look_again.wait()
            except TimeoutError:
                # The end of a process is seen at once; that of a server over HTTP only by asking.
                if not self._settings.url or self._calls:
                    continue
            self._look_again.clear()
            if not (self._lost or self._closing):
                await self._look(client)
        raise ConnectionError("the server has closed the connection, or exited")

    async def _look(self, client: "Client") -> None:
        try:
            async with asyncio.timeout(self._connect_seconds):
                self.tools = await _list_tools(client)
            self._unanswered = False
        except TimeoutError:
            if not self._calls:
                raise
            # Many servers do one thing at a time; ask again when the call has ended.
            self._unanswered = True

    async def _listen(self, client: "Client") -> None:
        """Servers of the 2026 protocol only tell of changed tools when asked to; older ones do it by themselves."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._look_again.set()
        except ListenNotSupportedError:
            return
        except (SubscriptionLost, MCPError):
            self._look_again.set()

    async def _take_message(self, message: "IncomingMessage") -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._look_again.set()

    def _end(self) -> None:
        """The stream from the server has ended: from now on calls fail at once."""
        self._lost = True
        self._client = None
        self.tools = ()
        self.error = "the connection was lost"
        self._look_again.set()
        if self._was_connected and self.settled.is_set():
            self._expect()

    async def _open_transport(self, stack: AsyncExitStack) -> "Transport":
        import httpx2
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if self._settings.url:
            # A call may be silent for as long as it takes; the toolbox bounds it.
            patience = httpx2.Timeout(self._connect_seconds, read=None)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=self._settings.headers, timeout=patience))
            return streamable_http_client(self._settings.url, http_client=http)
        launch, directory = Launch(argv=self._settings.command), None
        if self._settings.sandbox:
            if self._sandboxes is None:
                raise ConfigError("it is to run in a sandbox (sandbox = true), and none was looked for")
            # It is tried out at every start, which blocks.
            launch = await asyncio.to_thread(self._sandboxes.launch, self._settings)
            directory = self._sandboxes.workspace
        command, *rest = launch.argv
        env = {**self._settings.env, **launch.variables}
        parameters = StdioServerParameters(command=command, args=rest, env=env, cwd=directory)
        return stdio_client(parameters, errlog=await stack.enter_async_context(self._stderr.opened()))

    def _describe(self, error: BaseException) -> str:
        """One line about what is wrong, without what is secret in the settings."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        match error:
            case TimeoutError():
                text = f"it did not answer within {self._connect_seconds:g} seconds"
            case FileNotFoundError():
                text = f"there is no program {self._settings.command[0] if self._settings.command else ''!r}"
            case _:
                text = str(error) or type(error).__name__
        return " ".join(self._secrets.hide(text).split())[:500]

    def _not_connected(self) -> ToolError:
        return ToolError(f"The MCP server {self.name!r} is not connected ({self.error}). Nothing was carried out.")

    def _lost_meanwhile(self, tool: str) -> ToolError:
        return ToolError(
            f"The connection to the MCP server {self.name!r} was lost while it carried out {tool}: "
            "it is not known whether that was done."
        )


async def _list_tools(client: "Client") -> "tuple[Tool, ...]":
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)
