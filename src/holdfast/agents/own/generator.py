"""An async generator as an agent (A3): what it yields is said, what it raises becomes the outcome.

It runs as a guest: being stopped is a cancellation, and one that does not heed it, or says something afterwards, is not
heard. Above: the composition root. Sits on the run that it is given, and on `guests.running`.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.agents.cut_notes import note_cuts
from holdfast.agents.own.asking import Asking
from holdfast.agents.own.endings import outcome_of_exception
from holdfast.agents.own.run import Run
from holdfast.agents.own.writer import RunWriter
from holdfast.agents.pairing import pair_results
from holdfast.agents.port import RunHandle
from holdfast.agents.request import RunRequest
from holdfast.agents.resume_point import BEGINNING, ResumePoint
from holdfast.clock import Clock
from holdfast.config import LimitSettings, OnRestart
from holdfast.errors import ConfigError, GuestError
from holdfast.guests.blame import defined_at, quote, trail
from holdfast.guests.running import Guest
from holdfast.messages import Message
from holdfast.outcomes import Completed, Incomplete, Outcome
from holdfast.upstream.port import ModelCall, Options

logger = logging.getLogger(__name__)

AgentFunction = Callable[[Run], Any]
"""An async generator function, or a coroutine function, of one parameter."""
BREATH: Final = 32
"""A generator that never waits would hold up all others: after so many yields without a pause it makes one."""


def check_function(function: Any, name: str, where: str = "") -> AgentFunction:
    """Is it an agent?

    Args:
        function: what may be one.
        name: what it is called.
        where: where it is written, if it is none that says so itself.

    Raises:
        ConfigError: it is none; says where it stands and what one looks like.
    """
    if inspect.isroutine(function) or not where:
        where = defined_at(function)
    where = f"{where}: {name}"
    if not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)):
        is_function = inspect.isfunction(function)
        what = "an ordinary function" if is_function else f"of type {type(function).__name__}"
        raise ConfigError(f'{where} is {what}. An agent is written: async def {name}(run): yield "text".')
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        taken = inspect.signature(function)
        raise ConfigError(f"{where} takes {taken}; an agent takes one thing, its run: async def {name}(run).") from None
    result: AgentFunction = function
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorAgent:
    """A function as an agent. A `ServedAgent`."""

    name: str
    function: AgentFunction
    limits: LimitSettings
    clock: Clock
    on_restart: OnRestart = "end"
    """What it was doing lives in its frame, and is gone with its server; run again from its beginning it would do again
    what it has done. So it ends, unless it says that it can go on."""
    approval_seconds: float = 300.0

    @property
    def model(self) -> str:
        """Itself."""
        return self.name

    @property
    def can_resume(self) -> bool:
        """If it says so; a request cannot know."""
        return self.on_restart == "resume"

    def with_defaults(self, options: Options) -> Options:
        """As the request says."""
        return options

    def preview(self, request: RunRequest) -> ModelCall:
        """What it would be given: what it makes of that is its own affair."""
        messages = tuple(_shown(request.history, request.input, BEGINNING))
        return ModelCall(model=self.name, system=request.instructions, messages=messages)

    async def execute(
        self, request: RunRequest, history: Sequence[Message], run: RunHandle, point: ResumePoint
    ) -> Outcome:
        """Run it to its end."""
        guest = Guest(f"agent {self.name}", on_leave=lambda: writer.leave())
        writer = RunWriter(run, self.name, self.limits, point, request.max_tool_calls, guest.end)
        asker = Asking(run, writer, can_ask=request.can_ask, seconds=self.approval_seconds)
        given = Run(
            request,
            _shown(history, request.input, point),
            run,
            writer,
            self.clock,
            agent=self.name,
            attempt=point.attempt,
            asker=asker,
        )
        writer.open()
        if self.can_resume:
            # R15: if it is what ends its server, the log knows that it was begun.
            await run.drain()
        try:
            await guest.run(self._drive(given, writer, run))
        except Exception as error:
            outcome = writer.ended or outcome_of_exception(error, has_text=writer.has_said)
            if not isinstance(outcome, Incomplete):
                logger.warning("run %s: agent %s failed: %s\n%s", request.run, self.name, quote(error), trail(error))
            elif outcome.reason in ("max_output_tokens", "content_filter"):
                writer.close_turn("length" if outcome.reason == "max_output_tokens" else "content_filter")
            return outcome
        finally:
            writer.leave()
            await asker.aclose()
        if not writer.has_said:
            writer.warn(f"The agent {self.name} ended without a word.")
        writer.close_turn()
        return Completed()

    async def _drive(self, run: Run, writer: RunWriter, handle: RunHandle) -> None:
        work = self.function(run)
        if not isinstance(work, AsyncIterator):
            said = await work
            if said is not None:
                if not isinstance(said, str):
                    raise GuestError(f"An agent returns text or nothing, and this is of type {type(said).__name__}.")
                await run.text(said)
            return
        since_breath = 0
        async with aclosing(work) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if not isinstance(piece, str):
                    what = type(piece).__name__
                    raise GuestError(f"An agent yields text, and what comes{_place(work)} is of type {what}.")
                since_breath += 1
                if not writer.say(piece):
                    await handle.drain()
                    since_breath = 0
                elif since_breath >= BREATH:
                    await self.clock.sleep(0)
                    since_breath = 0


def _place(work: Any) -> str:
    """Where a generator is: ` at my_app.py, line 3`."""
    frame = getattr(work, "ag_frame", None)
    return "" if frame is None else f" at {Path(frame.f_code.co_filename).name}, line {frame.f_lineno},"


def _shown(history: Sequence[Message], given: Sequence[Message], point: ResumePoint) -> Sequence[Message]:
    """The conversation, as a model would be shown it: with results behind their calls, and notes on what was cut."""
    return (*note_cuts(pair_results(history, given)), *point.said)
