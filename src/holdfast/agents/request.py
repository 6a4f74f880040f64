"""What is asked of the agent, made once at the edge and never changed (C10, C11, C17, R11).

Sits on the vocabulary and the ports; knows no HTTP.
"""

from typing import Any, Literal

import msgspec

from holdfast.config import AgentSettings, OnRestart
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message, ToolSpec
from holdfast.store.records import LanePolicy, Surface
from holdfast.tools.port import Heard
from holdfast.upstream.port import Options


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of the agent on one input."""

    run: RunId
    session: SessionId
    surface: Surface
    agent: str = ""
    """A2: by its name; empty: the default one."""
    model: str
    """`provider/model`; of an agent of one's own, its name."""
    parent_run: RunId | None = None
    """A6: the run whose agent has asked for this one."""
    heard: Heard | None = None
    """S17: what the agent knows that has asked for this one: what it says is no user's word."""
    depth: int = 0
    """A6: how many agents have asked one another up to here."""
    answers_as: str = ""
    """C16: what every answer calls the model; empty: by the name of whichever answered."""
    input: tuple[Message, ...]
    """What is new: the last user message, or tool results. Saved with the answer."""
    history: tuple[Message, ...] = ()
    """What came before, when the client sent it."""
    stored_history: bool = False
    """What came before is the path to `parent`, or to the session's newest message, read when the run begins."""
    parent: NodeId | None = None
    rooted: bool = False
    instructions: str = ""
    """The system layer of this request, on top of the agent's own prompt."""
    memory_scope: str = ""
    """C14; empty: the session."""
    client_tools: tuple[ToolSpec, ...] = ()
    server_tools: bool = True
    """False: only the client's own tools are shown to the model."""
    options: Options = Options()
    max_tool_calls: int | None = None
    max_turns: int | None = None
    on_disconnect: Literal["cancel", "continue"] | float = "cancel"
    """What happens when the last subscriber leaves; a number: seconds to come back in."""
    on_restart: OnRestart = "end"
    """R15: what happens when its server is gone."""
    lane: LanePolicy | None = None
    """R11: what to do when the session has a run; None: the session was derived, not named, and has no lane."""
    fingerprint: str = ""
    """C15: what the request was, for whoever sends the same again while it runs."""
    can_ask: bool = True
    """R12: is there anybody who could answer a question? If not, a call that needs approval is denied."""
    asked_by: str = ""
    """S12: the name of the key that asks; empty: the admin's."""
    ephemeral: bool = False
    conversation: str | None = None
    truncate_history: bool = False
    """P7: at most the newest 100 messages."""
    trace_parent: str = ""
    """The caller's W3C trace context (`traceparent`), for S10."""
    metadata: dict[str, str] = {}
    """The client's own notes on the run."""
    echo: dict[str, Any] = {}
    """What its surface needs to say again in every answer about it; only that surface reads it."""


def with_defaults(options: Options, settings: AgentSettings) -> Options:
    """How the model should answer: as the request says, else as the agent's settings do."""
    names = ("reasoning_effort", "temperature", "top_p", "max_output_tokens")
    defaults = {name: getattr(settings, name) for name in names if getattr(options, name) is None}
    return msgspec.structs.replace(options, **defaults)
