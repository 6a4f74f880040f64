"""What a framework's models say and its tools do, as the events of a log: turns, calls, results (A5, R1, U13).

As the writer of an agent of one's own, for agents that are told of their models' turns: a call is begun when the model
begins it, and one that never came whole is dropped as any other. Above: the adapters. Sits on `own.writer`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.agents.cuts import NOT_CARRIED_OUT
from holdfast.agents.own.writer import RunWriter, cut_line
from holdfast.errors import RunOverError
from holdfast.events import Answered, ArgumentsAdded, Event, ToolCallBegan, ToolCallReady, ToolFinished, ToolStarted
from holdfast.ids import CallId, make_call_id
from holdfast.messages import Finish, Usage
from holdfast.outcomes import Incomplete, RequiresAction


class TurnWriter(RunWriter):
    """Writes one run's log, for an agent of a framework."""

    __slots__ = ("_begun", "_done", "_ids", "_in_turn", "_late", "_used", "finish")

    def __init__(self, *arguments: Any, used: Iterable[CallId] = ()) -> None:
        """`used`: ids of calls that the conversation has already."""
        super().__init__(*arguments)
        self._used = set(used)
        self._ids: dict[str, CallId] = {}
        """Our ids by theirs: no two calls of a conversation have the same one, whatever a provider does."""
        self._in_turn: dict[CallId, int] = {}
        """The calls of the turn that is going on, and their places."""
        self._begun: dict[CallId, str] = {}
        """Tools that are being carried out, and their names."""
        self._done: set[CallId] = set()
        """Calls that have their result: a framework may tell it twice."""
        self._late: Answered | None = None
        """The end of a turn that was cut and has calls: what it is depends on whether the framework runs them."""
        self.finish: Finish | None = None
        """How the last turn ended; None: it has not, or nobody said how."""

    @property
    def has_running_tools(self) -> bool:
        """Is the framework carrying anything out?"""
        return bool(self._begun)

    def begin_call(self, theirs: str, name: str) -> int:
        """A model begins a call; its arguments follow, under the number that is returned."""
        self._check()
        ours = CallId(theirs) if theirs and theirs not in self._used else make_call_id()
        self._used.add(ours)
        self._ids[theirs] = ours
        self._push(())
        place = len(self._in_turn)
        self._in_turn[ours] = place
        self._push((ToolCallBegan(index=place, call_id=ours, name=name),))
        return place

    def add_arguments(self, place: int, text: str) -> bool:
        """More of a call's arguments."""
        self._check()
        if not text:
            return True
        self._output_bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._output_bytes > self._max_output_bytes:
            self.stop(Incomplete(reason="max_output_tokens"))
            raise RunOverError
        return self._push((ArgumentsAdded(index=place, text=text),))

    def answer(self, finish: Finish, model: str = "", usage: Usage | None = None) -> None:
        """A model has ended its turn."""
        self._check()
        self._push(())
        answered = Answered(finish=finish, model=model or self._model, usage=usage or Usage())
        self.finish = finish
        self._is_open = False
        if self._in_turn and finish not in ("stop", "tool_calls"):
            self._late = answered
        else:
            self._run.push((answered,))

    def settle(self) -> None:
        """Nothing more comes of the turn: a cut one with calls has ended as its provider said, and they are dropped."""
        if self._late is not None:
            late, self._late = self._late, None
            self._run.push((late,))

    def begin_tool(self, theirs: str, name: str, arguments: str) -> CallId:
        """The framework carries a call out; it must be drained before anything is done. Returns our id of it."""
        self._check()
        ours = self._known(theirs, name, arguments)
        if self._tool_calls >= self._max_tool_calls:
            self.stop(Incomplete(reason="max_tool_calls"))
            raise RunOverError(f"The run has used up its {self._max_tool_calls} tool calls.")
        self._tool_calls += 1
        self._begun[ours] = name
        self._run.push((ToolStarted(call_id=ours, name=name, arguments=arguments, label=_label(name, arguments)),))
        return ours

    def end_tool(self, theirs: str, name: str, output: str, *, failed: bool, seconds: float = 0.0) -> None:
        """What came of a call; of one that was never begun, why not."""
        if self.is_over:
            return
        ours = self._ids.get(theirs)
        if ours is None or ours in self._done:
            return
        self._done.add(ours)
        executed = self._begun.pop(ours, None) is not None
        self._whole()
        self._run.push(
            (
                ToolFinished(
                    call_id=ours,
                    name=name,
                    output=output.encode("utf-8", "replace").decode() or ("" if executed else NOT_CARRIED_OUT),
                    failed=failed,
                    seconds=seconds,
                    executed="yes" if executed else "no",
                ),
            )
        )

    def hand_over(self, calls: Iterable[tuple[str, str, str]]) -> RequiresAction:
        """C11: calls that the client carries out: their ids, names and arguments."""
        self._check()
        ready = [(self._known(theirs, name, arguments), name, arguments) for theirs, name, arguments in calls]
        self._run.push([ToolCallReady(call_id=ours, name=name, arguments=given) for ours, name, given in ready])
        return RequiresAction(reason="client_tools", calls=tuple(ours for ours, _, _ in ready))

    def our_id(self, theirs: str, name: str, arguments: str) -> CallId:
        """The id under which the log has a call."""
        return self._known(theirs, name, arguments)

    def _known(self, theirs: str, name: str, arguments: str) -> CallId:
        """A call that stands in the log, whole; where its framework did not show it coming, from here on."""
        if theirs not in self._ids:
            self.add_arguments(self.begin_call(theirs, name), arguments)
        self._whole()
        return self._ids[theirs]

    def _whole(self) -> None:
        """What is carried out was whole, whatever its provider said."""
        if self._late is not None:
            late, self._late = self._late, None
            self._run.push((Answered(finish="tool_calls", model=late.model, usage=late.usage),))
        elif self._is_open:
            self._is_open = False
            self._run.push((Answered(finish="tool_calls" if self._in_turn else "stop", model=self._model),))

    def _push(self, events: Sequence[Event]) -> bool:
        if not self._is_open:
            self.settle()
            self._in_turn.clear()
            self.finish = None
        return super()._push(events)


def _label(name: str, arguments: str) -> str:
    try:
        given = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return name
    values = given.values() if isinstance(given, dict) else ()
    return cut_line(" ".join([name, *(str(value) for value in values if isinstance(value, str | int | float))]))
