"""Wire dialects (W): the words that differ between ours and those of servers whose clients should connect unchanged.

One small table. Encoders and routes ask it for names and never for the dialect's own name. Sits on config.
"""

from typing import Final, Literal

import msgspec

from holdfast.config import DialectName, ToolItems

RunWordsName = Literal["own", "hermes"]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How one family of clients expects to be spoken to."""

    name: DialectName
    header_prefix: str = "X-Holdfast-"
    extras_key: str = "holdfast"
    """Under this key an answer says what the OpenAI API has no word for."""
    tool_event: str | None = None
    """The SSE event of tool activity; None: a normal chunk with an empty delta and the extras key (C8)."""
    failed_tool: str = "failed"
    """The status of a tool that has failed, in tool activity."""
    usage_at_finish: bool = False
    """The chunk with the finish reason has the usage, asked for or not."""
    run_words: RunWordsName = "own"
    """In whose words the runs API tells of runs and their events."""
    own_session: bool = False
    """A run that names no session has one under its own id."""
    input_is_past: bool = False
    """The messages before the last of a run's input are what came before, in place of what its session has."""
    bare_items: bool = False
    """In the input of /v1/responses a string is a user's message, and so is what has content and no role."""
    gateway_health: bool = False
    """/health/detailed also speaks of a gateway and its platforms."""
    unspoken: frozenset[str] = frozenset()
    """Features that we have and that mean other paths or words to this dialect's clients."""
    capabilities_object: str = "holdfast.api_server.capabilities"
    platform: str = "holdfast"
    default_model: str = "holdfast"
    """The agent's name in /v1/models when none is configured."""
    owned_by: str = "holdfast"
    tool_items: ToolItems = "mcp_call"
    """How /v1/responses shows the server's own tools, unless the settings say."""
    text_outputs: bool = False
    """The output of a server's tool is a string, where it is an item of its own."""
    always_done: bool = True
    """W3: does `[DONE]` end every chat stream, or only that of a whole answer?"""
    repeats_model: bool = False
    """Answers call the model what the request called it, whatever served it."""
    session_prefix: str = ""
    """Put before a session id that came in a body."""
    uploads: bool = False
    """A chat completion may be sent as a form with files."""
    timeout_status: int = 502
    """The status of a plain answer whose run reached its time limit without a word."""
    default_session: str | None = None
    """The session of a request that names none; None: it is derived from the conversation (C13)."""

    def header(self, name: str) -> str:
        """`Run-Id` as `X-Holdfast-Run-Id`."""
        return self.header_prefix + name


DIALECTS: Final[dict[DialectName, Dialect]] = {
    "holdfast": Dialect(name="holdfast"),
    "hermes": Dialect(
        name="hermes",
        header_prefix="X-Hermes-",
        extras_key="hermes",
        tool_event="hermes.tool.progress",
        failed_tool="completed",
        usage_at_finish=True,
        run_words="hermes",
        own_session=True,
        input_is_past=True,
        bare_items=True,
        gateway_health=True,
        unspoken=frozenset({"session_resources", "session_fork"}),
        capabilities_object="hermes.api_server.capabilities",
        platform="hermes-agent",
        default_model="hermes-agent",
        owned_by="hermes",
        tool_items="function_call",
        text_outputs=True,
        repeats_model=True,
    ),
    "nanobot": Dialect(
        name="nanobot",
        platform="nanobot",
        default_model="nanobot",
        owned_by="nanobot",
        always_done=False,
        repeats_model=True,
        session_prefix="api:",
        uploads=True,
        timeout_status=504,
        default_session="api:default",
    ),
}
