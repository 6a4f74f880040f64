"""Following a run to its end: what comes is shown, Ctrl-C is heard, approvals are asked for (T1, R5, R12).

Above: chat, runs and the interactive chat. Below: the client, signals and a view. Knows neither prompts nor sessions.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager
from typing import Any, Final, Literal, Protocol

from holdfast.cli.terminal.render import FRAME_SECONDS, View
from holdfast.cli.terminal.wording import sentence
from holdfast.client import HoldfastClient
from holdfast.client.http import is_passing, wait_seconds
from holdfast.errors import ClientError, HoldfastError, ServerRefusedError
from holdfast.events import ApprovalAnswered, ApprovalAsked, RunEnded
from holdfast.ids import BEFORE_FIRST, EventNumber
from holdfast.runs.log.transcript import Transcript
from holdfast.signals import signals_to

STOP_SECONDS: Final = 3.0
"""How long leaving may take because a run is still to be stopped."""
_SIGPIPE: Final = 13
_SETTLE_SECONDS: Final = 0.1
"""A replayed log asks and answers at once; only a question that stays open is put to a person."""

OnInterrupt = Literal["stop", "leave"]


class LeftError(HoldfastError):
    """The user has left before the end."""


class Interrupts:
    """Ctrl-C, one at a time. While nobody holds them, one is enough to leave."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._hit = asyncio.Event()
        self._holders = 0

    def hit(self) -> None:
        """Ctrl-C was pressed. One that nobody takes, and a second one that comes before the first was taken, leaves."""
        if not self._holders or self._hit.is_set():
            self._leave()
        self._hit.set()

    @contextmanager
    def held(self) -> Generator[None]:
        """Somebody will take the next one, if not at once: a run that is just being started is stopped first."""
        if not self._holders:
            self._hit.clear()
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    async def wait(self) -> None:
        """Until the next one."""
        await self._hit.wait()
        self._hit.clear()


class Asker(Protocol):
    """Answers questions about approvals (R12)."""

    async def ask(self, event: ApprovalAsked) -> bool | None:
        """May this call be carried out? None: there is nobody who could say so.

        Raises:
            LeftError: Ctrl-C.
        """
        ...


class NobodyToAsk:
    """In a pipe nobody can be asked."""

    async def ask(self, event: ApprovalAsked) -> None:
        """Nobody is."""
        return


class ApprovesAll:
    """`--yes`: whoever gave the command has approved what it does."""

    async def ask(self, event: ApprovalAsked) -> bool:
        """Yes."""
        return True


class RunFollower:
    """One run on its way to its end."""

    def __init__(
        self,
        client: HoldfastClient,
        run: str,
        view: View,
        interrupts: Interrupts,
        *,
        asker: Asker | None = None,
        on_interrupt: OnInterrupt = "stop",
        shown_after: EventNumber = BEFORE_FIRST,
        patience_seconds: float | None = 60.0,
    ) -> None:
        self._client = client
        self._run = run
        self._view = view
        self._interrupts = interrupts
        self._asker = asker
        self._on_interrupt = on_interrupt
        self._shown_after = shown_after
        self._patience_seconds = patience_seconds
        self._question: asyncio.Task[None] | None = None
        self._asked = ""

    async def to_end(self) -> Transcript:
        """Show it to its end. Ctrl-C stops it and what came stays; a second one leaves.

        Raises:
            LeftError: the user has left; the run may go on.
            ClientError: the server is gone, or refuses.
        """
        with self._interrupts.held():
            return await self._to_end()

    async def _to_end(self) -> Transcript:
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read())
        ticking = loop.create_task(self._tick())
        tasks: list[asyncio.Task[Any]] = [reading, ticking]
        may_stop = self._on_interrupt == "stop"
        try:
            while True:
                interrupted = loop.create_task(self._interrupts.wait())
                tasks.append(interrupted)
                done, _ = await asyncio.wait({reading, ticking, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if reading in done:
                    return reading.result()
                if ticking in done:
                    ticking.result()
                if not may_stop:
                    raise LeftError
                may_stop = False
                tasks.append(loop.create_task(self._stop()))
        finally:
            await self._close_question()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self) -> Transcript:
        entries = self._client.events(
            self._run,
            patience_seconds=self._patience_seconds,
            on_lost=lambda problem: self._view.note(f"{sentence(problem)} Trying to read on …"),
        )
        async with aclosing(entries):
            async for entry in entries:
                if entry.number <= self._shown_after:
                    self._view.skip(entry)
                    continue
                event = entry.event
                if isinstance(event, RunEnded) or (
                    isinstance(event, ApprovalAnswered) and event.call_id == self._asked
                ):
                    await self._close_question()
                self._view.add(entry)
                if isinstance(event, ApprovalAsked) and self._asker is not None:
                    await self._close_question()
                    self._asked = event.call_id
                    self._question = asyncio.get_running_loop().create_task(self._ask(self._asker, event))
        return self._view.transcript

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._view.tick()

    async def _stop(self) -> None:
        self._view.note("Stopping; Ctrl-C again to leave.")
        try:
            await self._client.stop(self._run)
        except ClientError as error:
            self._view.note(f"The run could not be stopped: {error.message}")

    async def _ask(self, asker: Asker, event: ApprovalAsked) -> None:
        await asyncio.sleep(_SETTLE_SECONDS)
        try:
            approved = await asker.ask(event)
        except LeftError:
            self._interrupts.hit()
            return
        tries = 0
        while True:
            try:
                if approved is None:
                    await self._client.deny_unasked(self._run, event.call_id)
                else:
                    await self._client.answer_approval(self._run, event.call_id, approved)
            except ClientError as error:
                if is_passing(error):
                    # The question outlives its server, and so does the answer (R12, R15).
                    if not tries and approved is not None:
                        self._view.note("Your answer is given when the server is back.")
                    await asyncio.sleep(wait_seconds(tries))
                    tries += 1
                    continue
                is_late = isinstance(error, ServerRefusedError) and error.status == 409
                if not (is_late and tries):
                    self._view.note("Somebody else has answered." if is_late else error.message)
            return

    async def _close_question(self) -> None:
        """The question is answered, here or elsewhere, or there is nobody left to ask it."""
        if self._question is not None:
            question, self._question, self._asked = self._question, None, ""
            question.cancel()
            await asyncio.wait([question])
            if not question.cancelled():
                question.result()


async def stop_quietly(client: HoldfastClient, run: str) -> None:
    """Stop a run whose reader has gone; there is nobody to tell when that fails, and the server ends it by itself."""
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await client.stop(run)
    except (ClientError, TimeoutError):
        return


def run_with_signals(main: Callable[[Interrupts], Coroutine[Any, Any, int]]) -> int:
    """Run a command in a loop of its own; its exit code.

    Ctrl-C is handed to the command. SIGTERM and SIGHUP end it in order, so that an agent of its own is closed properly.
    """
    try:
        return asyncio.run(_with_signals(main))
    except BrokenPipeError:
        # The reader of our output has left (`holdfast chat ... | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + _SIGPIPE


async def _with_signals(main: Callable[[Interrupts], Coroutine[Any, Any, int]]) -> int:
    loop = asyncio.get_running_loop()
    ended_by = 0

    def end(number: signal.Signals) -> None:
        nonlocal ended_by
        ended_by = number
        working.cancel()

    interrupts = Interrupts(lambda: end(signal.SIGINT))
    working = loop.create_task(main(interrupts))
    with signals_to(lambda _: interrupts.hit(), (signal.SIGINT,)), signals_to(end, (signal.SIGTERM, signal.SIGHUP)):
        await asyncio.wait([working])
    if working.cancelled():
        return 128 + ended_by
    return working.result()
