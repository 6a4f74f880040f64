"""What became of a run's calls, as its log has it: a part of the transcript. No I/O; sits on the vocabulary."""

from dataclasses import dataclass

from holdfast.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Event,
    RunDelegated,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
)
from holdfast.ids import CallId, RunId


@dataclass(frozen=True, slots=True)
class WaitingApproval:
    """A call that waits for somebody's word (R12)."""

    call_id: CallId
    name: str
    arguments: str
    expires_at: float


class CallLog:
    """The calls of a run: the server's tools, the client's, those that were never whole."""

    __slots__ = ("approvals", "children", "dropped", "handed_over", "results", "tools")

    def __init__(self) -> None:
        self.tools: list[ToolStarted] = []
        """Server tools that began, in order."""
        self.results: dict[CallId, ToolFinished] = {}
        self.children: dict[CallId, RunId] = {}
        """A6: the runs of other agents that were asked, by the call that did."""
        self.approvals: dict[CallId, WaitingApproval] = {}
        self.dropped: list[ToolCallDropped] = []
        self.handed_over: list[CallId] = []
        """The client's calls that it was told to carry out (C11)."""

    def copy(self) -> "CallLog":
        """One that goes on by itself."""
        other = CallLog()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name).copy())
        return other

    def add(self, event: Event, at: float) -> None:
        """Take what an event says of a call."""
        match event:
            case ToolCallDropped():
                self.dropped.append(event)
            case ToolCallReady():
                self.handed_over.append(event.call_id)
            case ToolStarted():
                self.tools.append(event)
            case ToolFinished():
                self.results[event.call_id] = event
                self.approvals.pop(event.call_id, None)
            case ApprovalAsked():
                self.approvals[event.call_id] = WaitingApproval(
                    event.call_id, event.name, event.arguments, at + event.seconds
                )
            case ApprovalAnswered():
                self.approvals.pop(event.call_id, None)
            case RunDelegated():
                self.children[event.call_id] = event.run
            case _:
                pass

    def running(self) -> tuple[ToolStarted, ...]:
        """Server tools that began and have not finished."""
        return tuple(tool for tool in self.tools if tool.call_id not in self.results)
