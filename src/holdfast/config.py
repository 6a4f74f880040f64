"""Settings: their names, defaults and bounds.

Where they come from (flags, HOLDFAST_* variables, holdfast.toml) is read in `settings`. Vocabulary: imports nothing of
ours.
"""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

WireProtocol = Literal["chat_completions", "responses", "anthropic_messages"]
DialectName = Literal["holdfast", "hermes", "nanobot"]
ToolItems = Literal["mcp_call", "function_call"]
ApprovalMode = Literal["auto", "ask", "deny"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolSet = Literal["files", "terminal", "web", "memory", "mcp"]


def _repr_without(table: msgspec.Struct, *secrets: str) -> str:
    """A settings table for logs and tracebacks: what is secret is only said to be there."""
    values = msgspec.structs.asdict(table).items()
    shown = (f"{name}={'***' if name in secrets and value else repr(value)}" for name, value in values)
    return f"{type(table).__name__}({', '.join(shown)})"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [server] of the settings file."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8642
    api_key: str = ""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Names that clients may call the server by, beside addresses and names of this machine."""
    dialect: DialectName = "holdfast"
    name: str = ""
    """The agent's name in /v1/models; empty: the dialect's own name."""
    keepalive_seconds: Positive = 15.0
    max_body_bytes: Count = 10_000_000
    head_seconds: Positive = 15.0
    body_seconds: Positive = 30.0
    max_connections: Annotated[int, msgspec.Meta(ge=0)] = 0
    """0: as many as the system's limit of open files allows."""
    shutdown_grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    strict_models: bool = False
    tool_items: ToolItems | None = None
    """How /v1/responses shows the server's own tools; None: as the dialect does."""

    def __repr__(self) -> str:
        return _repr_without(self, "api_key")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [store] of the settings file."""

    url: str = ""
    """`sqlite:////path/to.db` or `memory:`; empty: holdfast.db in the data directory."""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=600)] = 5.0
    """R17: when the runs of a server that is silent are taken from it; where several share a store."""
    max_responses: Count = 10_000
    retention_days: Positive = 30.0


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [stream] of the settings file."""

    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    connect_seconds: Positive = 10.0
    first_byte_seconds: Positive = 120.0
    stall_seconds: Positive = 180.0


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [limits] of the settings file."""

    max_concurrent_runs: Count = 500
    run_seconds: Positive = 7200.0
    idle_seconds: Positive = 900.0
    max_tool_calls: Count = 200
    max_output_bytes: Count = 5_000_000
    max_queued_per_session: Annotated[int, msgspec.Meta(ge=0)] = 20


OnRestart = Literal["resume", "end"]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [agent] of the settings file."""

    prompt: str = (
        "You are a helpful assistant that can use tools. Be brief and exact. "
        "Say plainly what you did and what you could not do."
    )
    workspace: str = "."
    tools: tuple[ToolSet, ...] | None = None
    """None: files, web, memory and mcp; with the demo model, which only does as it is told, terminal too."""
    approval: ApprovalMode | dict[str, ApprovalMode] = "auto"
    """One policy, or one per tool name (`*` matches), the rest `auto`."""
    approval_seconds: Positive = 300.0
    max_turns: Count = 50
    on_restart: OnRestart = "resume"
    """R15: what becomes of detached runs when their server dies or is stopped."""
    reasoning_effort: ReasoningEffort | None = None
    """This and the next three: how the model answers where a request does not say. None: as the provider likes."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_output_tokens: Count | None = None
    tool_seconds: Positive = 120.0
    max_tool_output_bytes: Count = 50_000
    allow_private_hosts: tuple[str, ...] = ()
    """Hosts that fetch_url may reach although their address is private."""


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [providers.NAME] of the settings file."""

    protocol: WireProtocol | None = None
    """None: as the table of known providers says, else chat_completions."""
    base_url: str = ""
    api_key: str = ""
    models: tuple[str, ...] = ()
    """Shown in /v1/models."""
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return _repr_without(self, "api_key", "headers")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [models."provider/model"] of the settings file."""

    fallbacks: tuple[str, ...] = ()


class McpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[mcp.NAME]: a command to start, or a URL to connect to."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    start_seconds: Annotated[float, msgspec.Meta(ge=0)] = 10.0

    def __repr__(self) -> str:
        return _repr_without(self, "env", "headers")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of holdfast.toml."""

    model: str = ""
    """`provider/model` of the default agent; empty: what is found, else the built-in demo model."""
    fallbacks: tuple[str, ...] = ()
    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    stream: StreamSettings = StreamSettings()
    limits: LimitSettings = LimitSettings()
    agent: AgentSettings = AgentSettings()
    providers: dict[str, ProviderSettings] = {}
    models: dict[str, ModelSettings] = {}
    mcp: dict[str, McpSettings] = {}
