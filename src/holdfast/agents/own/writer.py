"""What an agent of one's own says and does, as the events of a log: turns, texts, calls, results (A3, R1).

A stretch between two tools is a turn, as if a model had said it, so that every surface shows it as it shows the
built-in agent's. Limits of output and of calls hold here (R10). Above: `run`, and adapters of frameworks. Sits on the
agents' port and the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

from holdfast.agents.port import RunHandle
from holdfast.agents.resume_point import ResumePoint
from holdfast.config import LimitSettings
from holdfast.errors import RunOverError
from holdfast.events import (
    Answered,
    ArgumentsAdded,
    Event,
    ReasoningAdded,
    TextAdded,
    ToolCallBegan,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    UsageAdded,
    Warned,
)
from holdfast.ids import CallId
from holdfast.messages import Executed, Usage
from holdfast.outcomes import Incomplete, Outcome

LABEL_CHARACTERS: Final = 80
USES_IN_A_ROW: Final = 64
"""So often tokens are told with nothing between, each by itself; more are added up: a loop that only counts writes no
log that everybody else would wait for."""


class RunWriter:
    """Writes one run's log, for an agent that is not the built-in one."""

    __slots__ = (
        "_end",
        "_is_open",
        "_max_output_bytes",
        "_max_tool_calls",
        "_model",
        "_open_calls",
        "_output_bytes",
        "_run",
        "_tool_calls",
        "_turns",
        "_unsaid",
        "_uses",
        "_uses_from",
        "ended",
        "has_said",
        "is_over",
    )

    def __init__(
        self,
        run: RunHandle,
        model: str,
        limits: LimitSettings,
        point: ResumePoint,
        max_tool_calls: int | None,
        end: Callable[[], None],
    ) -> None:
        """`end` ends the agent, when it has reached a limit."""
        self._run = run
        self._model = model
        self._end = end
        self._max_output_bytes = limits.max_output_bytes
        self._max_tool_calls = max_tool_calls or limits.max_tool_calls
        self._output_bytes = point.output_bytes
        self._tool_calls = point.tool_calls
        self._turns = point.turns
        self._is_open = False
        self._uses = 0
        self._uses_from = (0, 0)
        """How much had been said and done when they began to be told in a row."""
        self._unsaid = Usage()
        """What was used, and is not in the log yet."""
        self._open_calls: set[CallId] = set()
        self.has_said = point.has_text
        """Has it said anything that a user sees?"""
        self.ended: Outcome | None = None
        """It has reached a limit, and this is how the run ends."""
        self.is_over = False
        """Nothing more is taken from it: the run has ended, or is being ended."""

    def open(self) -> None:
        """Its first turn begins."""
        self._push(())

    def say(self, text: str) -> bool:
        """Words of the answer. Once for every token: kept short.

        Returns:
            False: no more before `drain` has been awaited.
        """
        if self._is_open and not self.is_over and text and type(text) is str:
            size = len(text) if text.isascii() else _size(text)
            if self._output_bytes + size <= self._max_output_bytes and size >= 0:
                self._output_bytes += size
                self.has_said = True
                return self._run.push((TextAdded(text=text),))
        return self._say_more(text, TextAdded)

    def think(self, text: str) -> bool:
        """Reasoning, which is no part of the answer."""
        return self._say_more(text, ReasoningAdded)

    def _say_more(self, text: str, kind: type[TextAdded] | type[ReasoningAdded]) -> bool:
        """As `say`, where it is not the usual case: a turn begins, a limit is reached, characters are no Unicode."""
        self._check()
        room = self._max_output_bytes - self._output_bytes
        # What is far over the limit is not looked at to its end: everybody would wait.
        said = text[: room + 1].encode("utf-8", "replace")
        if not said:
            return self._run.push(())
        self._output_bytes += min(len(said), room)
        is_keeping_up = True
        if kept := said[:room].decode("utf-8", "ignore"):
            self.has_said = self.has_said or kind is TextAdded
            is_keeping_up = self._push((kind(text=kept),))
        if len(said) > room:
            limit = self._max_output_bytes
            self.stop(
                Incomplete(
                    reason="max_output_tokens",
                    message=f"The run reached the server's limit of {limit} bytes of output (limits.max_output_bytes).",
                ),
            )
        return is_keeping_up

    def start_tool(self, call: CallId, name: str, arguments: str, label: str = "") -> None:
        """A piece of work begins; it must be drained before anything is done."""
        self._check()
        if self._tool_calls >= self._max_tool_calls:
            self.stop(Incomplete(reason="max_tool_calls"))
            raise RunOverError(f"The run has used up its {self._max_tool_calls} tool calls.")
        self._tool_calls += 1
        self._open_calls.add(call)
        self._push(
            (
                ToolCallBegan(index=0, call_id=call, name=name),
                ArgumentsAdded(index=0, text=arguments),
                Answered(finish="tool_calls", model=self._model),
                ToolStarted(call_id=call, name=name, arguments=arguments, label=cut_line(label or name)),
            )
        )
        self._is_open = False

    def finish_tool(
        self, call: CallId, name: str, output: str, *, failed: bool, seconds: float, executed: Executed = "yes"
    ) -> None:
        """A piece of work is done."""
        if self.is_over or call not in self._open_calls:
            return
        self._open_calls.discard(call)
        self.close_turn()
        self._run.push(
            (
                ToolFinished(
                    call_id=call,
                    name=name,
                    output=output.encode("utf-8", "replace").decode(),
                    failed=failed,
                    seconds=seconds,
                    executed=executed,
                ),
            )
        )

    def tell(self, *events: Event) -> None:
        """What is no part of a turn."""
        self._check()
        self._run.push(events)

    def use(self, usage: Usage) -> None:
        """Tokens were used."""
        self._check()
        here = (self._output_bytes, self._tool_calls)
        self._uses = self._uses + 1 if here == self._uses_from else 0
        self._uses_from = here
        self._unsaid += usage
        if self._uses < USES_IN_A_ROW:
            self._tell_usage()

    def _tell_usage(self) -> None:
        if self._unsaid != Usage():
            unsaid, self._unsaid = self._unsaid, Usage()
            self._run.push((UsageAdded(usage=unsaid),))

    def warn(self, message: str) -> None:
        """Something a person should know."""
        self._run.push((Warned(message=message),))

    def close_turn(self, finish: Literal["stop", "length", "content_filter"] = "stop") -> None:
        """What it has said so far is whole, or is cut as `finish` says."""
        if self._is_open:
            self._run.push((Answered(finish=finish, model=self._model),))
            self._is_open = False

    def begin_turn(self) -> None:
        """What was said to the run so far is seen from here on."""
        self.close_turn()
        self._push(())

    def stop(self, outcome: Outcome) -> None:
        """It has reached a limit."""
        self.ended = self.ended or outcome
        self.is_over = True
        self._end()

    def leave(self) -> None:
        """Nobody hears it any more."""
        self._tell_usage()
        self.is_over = True

    def _push(self, events: Sequence[Event]) -> bool:
        if not self._is_open:
            begun = TurnStarted(turn=self._turns, model=self._model)
            self._turns += 1
            self._is_open = True
            return self._run.push((begun, *events))
        return self._run.push(events)

    def _check(self) -> None:
        if self.is_over:
            raise RunOverError


def _size(text: str) -> int:
    """Bytes of a text; -1: it has halves of characters, which no JSON has."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def cut_line(text: str) -> str:
    """A few words for a person, on one line."""
    line = " ".join(text[: LABEL_CHARACTERS * 4].split())
    return line if len(line) <= LABEL_CHARACTERS else line[: LABEL_CHARACTERS - 1].rstrip() + "…"
