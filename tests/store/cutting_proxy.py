"""A way to a PostgreSQL that can be cut: at once, silently, or right before an answer; or be slow, or hold one back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class CuttingProxy:
    """Passes bytes on between clients and a server's socket, until it is told otherwise."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._wanted: bytes | None = None
        self._awaited: bytes | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._going: set[asyncio.Task[None]] = set()
        self.cuts = 0
        """How many answers were swallowed."""
        self.held = asyncio.Event()
        """There is an answer that was held back."""
        self._is_let_go = asyncio.Event()
        self.is_refusing = False
        self.delay_seconds = 0.0
        """How long whatever passes is on its way."""
        self._is_passing = asyncio.Event()
        self._is_passing.set()

    @property
    def is_silent(self) -> bool:
        """Does nothing pass, and nobody is told?"""
        return not self._is_passing.is_set()

    @is_silent.setter
    def is_silent(self, silent: bool) -> None:
        if silent:
            self._is_passing.clear()
        else:
            self._is_passing.set()

    def cut_answer_to(self, wanted: bytes) -> None:
        """The server gets the next request that has these bytes, and its answer is not delivered."""
        self._wanted = wanted

    def hold_answer_to(self, wanted: bytes) -> None:
        """The server gets the next request that has these bytes, and its answer is held back until `let_go`."""
        self._awaited = wanted

    def let_go(self) -> None:
        """Deliver what was held back."""
        self._is_let_go.set()

    def cut_all(self) -> None:
        """Every connection breaks now."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server_writer}
        self._writers |= both
        is_swallowing, is_holding = asyncio.Event(), asyncio.Event()

        async def requests() -> None:
            while data := await reader.read(1 << 16):
                if self._wanted is not None and self._wanted in data:
                    self._wanted = None
                    is_swallowing.set()
                if self._awaited is not None and self._awaited in data:
                    self._awaited = None
                    is_holding.set()
                await self._on_its_way()
                server_writer.write(data)

        async def answers() -> None:
            while data := await server_reader.read(1 << 16):
                if is_swallowing.is_set():
                    self.cuts += 1
                    break
                if is_holding.is_set():
                    self.held.set()
                    await self._is_let_go.wait()
                await self._on_its_way()
                writer.write(data)

        try:
            async with asyncio.TaskGroup() as tasks:
                for one in (requests(), answers()):
                    tasks.create_task(self._until_over(one, both))
        finally:
            self._writers -= both

    async def aclose(self) -> None:
        """Every connection is over."""
        self.is_silent, self.is_refusing = False, True
        self.let_go()
        while self._going:
            self.cut_all()
            await asyncio.wait(self._going, timeout=0.1)

    async def _on_its_way(self) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        await self._is_passing.wait()

    async def _until_over(self, passing: object, both: set[asyncio.StreamWriter]) -> None:
        with suppress(OSError):
            await passing  # type: ignore[misc]
        for writer in both:
            writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(server_folder: str, folder: Path) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """A proxy, and the folder of its socket."""
    proxy = CuttingProxy(Path(server_folder) / ".s.PGSQL.5432")
    server = await asyncio.start_unix_server(proxy.serve, folder / ".s.PGSQL.5432")
    try:
        yield proxy, str(folder)
    finally:
        server.close()
        await proxy.aclose()
