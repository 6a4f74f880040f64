"""Settings: their names, defaults and bounds.

Where they come from (flags, HOLDFAST_* variables, holdfast.toml) is read in `settings`. Vocabulary: imports nothing of
ours.
"""

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

WireProtocol = Literal["chat_completions", "responses", "anthropic_messages"]
DialectName = Literal["holdfast", "hermes", "nanobot"]
ToolItems = Literal["mcp_call", "function_call"]
ApprovalMode = Literal["auto", "ask", "deny"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Role = Literal["user", "viewer", "admin"]
SandboxKind = Literal["bwrap", "landlock", "off"]
SandboxChoice = Literal["auto", "bwrap", "landlock", "off"]
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
    """`sqlite:////path/to.db`, `postgresql://user:password@host/database` or `memory:`; empty: holdfast.db in the data
    directory."""
    lease_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=600)] = 5.0
    """R17: when the runs of a server that is silent are taken from it; where several share a store."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """S18: what takes more room than this is turned away; 0: no limit of ours."""
    max_responses: Count = 10_000
    retention_days: Positive = 30.0

    def __repr__(self) -> str:
        return _repr_without(self, "url")


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
    tools: tuple[str, ...] | None = None
    """Sets of tools (`ToolSet`), modules or functions of one's own (A1), other agents (`agent:NAME`, A6). None: files,
    web, memory and mcp; with the demo model, which only does as it is told, terminal too."""
    approval: ApprovalMode | dict[str, ApprovalMode] = "auto"
    """One policy, or one per tool name (`*` matches), the rest `auto`."""
    caution: ApprovalMode = "ask"
    """S17: the policy for likely secrets, and for hosts that nobody named once a file was read."""
    known_hosts: tuple[str, ...] = ()
    """S17: hosts that are no strangers."""
    approval_seconds: Positive = 300.0
    max_turns: Count = 50
    on_restart: OnRestart | None = None
    """R15: what becomes of detached runs when their server dies or is stopped. None: "resume"; of an agent of one's
    own "end"."""
    reasoning_effort: ReasoningEffort | None = None
    """This and the next three: how the model answers where a request does not say. None: as the provider likes."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_output_tokens: Count | None = None
    tool_seconds: Positive = 120.0
    max_tool_output_bytes: Count = 50_000
    sandbox: SandboxChoice = "auto"
    """S15: what confines commands of the terminal; auto: the best that works here."""
    sandbox_network: bool = False
    """May commands in the sandbox reach the network?"""
    sandbox_paths: tuple[str, ...] = ()
    """What they may read beside the workspace and the system's programs."""
    sandbox_memory_bytes: Annotated[int, msgspec.Meta(ge=16_000_000)] = 4_000_000_000
    sandbox_processes: Annotated[int, msgspec.Meta(ge=8)] = 512
    """For all processes of one command together; threads count."""
    allow_private_hosts: tuple[str, ...] = ()
    """Hosts that fetch_url may reach although their address is private."""
    max_tool_calls: Count | None = None
    """This and the next three: as in [limits], which holds where they are not set."""
    max_output_bytes: Count | None = None
    run_seconds: Positive | None = None
    idle_seconds: Positive | None = None

    def limits_within(self, limits: LimitSettings) -> LimitSettings:
        """What its runs may use."""
        names = ("max_tool_calls", "max_output_bytes", "run_seconds", "idle_seconds")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(limits, **own)


class NamedAgentSettings(AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [agents.NAME] of the settings file; what is not set there is as in [agent]."""

    model: str = ""
    """`provider/model`; empty: the default agent's."""
    fallbacks: tuple[str, ...] | None = None
    """None: those of its model."""
    description: str = ""
    """A6: what it is for, told to agents that may ask it."""
    use: str = ""
    """A3: an agent of one's own, `my_app:agent`; empty: the built-in loop."""


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


class PriceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a million tokens of a model cost."""

    input: NotNegative
    output: NotNegative
    cached: NotNegative | None = None
    """Input that the provider had in its cache; None: as the rest of it."""

    def cost(self, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Of so many tokens; those from the cache are part of the input."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, input_tokens - cached_tokens)
        return (fresh * self.input + cached_tokens * cached + output_tokens * self.output) / 1_000_000


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table [models."provider/model"] of the settings file."""

    fallbacks: tuple[str, ...] = ()
    price: PriceSettings | None = None
    """None: nobody knows, and no cost is shown."""


class KeySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[keys.NAME]: a key of the team (S12), by its hash alone."""

    hash: str = ""
    """SHA-256 of the key, in hexadecimal digits, as `holdfast keys add` shows it."""
    role: Role = "user"
    models: tuple[str, ...] | None = None
    """Names of models and agents, `openai/*` for all that begin so; None: all."""
    expires_at: str = ""
    """A time such as 2027-01-31 or 2027-01-31T12:00:00Z; empty: never."""
    requests_per_minute: Count | None = None
    concurrent_runs: Count | None = None
    tokens_per_day: Count | None = None
    cost_per_day: Positive | None = None
    stored_bytes: Count | None = None


class McpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[mcp.NAME]: a command to start, or a URL to connect to."""

    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    sandbox: bool = False
    """S15: start the command in the agent's sandbox, and not at all where there is none."""
    sandbox_network: bool = False
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
    agents: dict[str, NamedAgentSettings] = {}
    providers: dict[str, ProviderSettings] = {}
    models: dict[str, ModelSettings] = {}
    keys: dict[str, KeySettings] = {}
    mcp: dict[str, McpSettings] = {}
