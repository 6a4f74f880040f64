"""What every handler works with: one value, made by the composition root, found at `request.app.state.service`.

Sits on the runs layer and the ports. Nothing here does anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

from starlette.requests import HTTPConnection

from holdfast.agents.directory import Agents
from holdfast.api.callers import CALLER
from holdfast.api.dialects import DIALECTS, Dialect
from holdfast.api.items.items import ItemStyle
from holdfast.api.requests.headers import headers_of
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.team.caller import THE_ADMIN, Caller
from holdfast.runs.team.keyring import Keyring
from holdfast.runs.team.owned import OwnedRuns, Runs
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.accounts import KeyLimits
from holdfast.store.owned import OwnedStore
from holdfast.store.port import Kept, Store
from holdfast.tools.port import RemoteTools
from holdfast.upstream.port import ModelCall, Options


class Models(Protocol):
    """Which models can be asked for by name."""

    def has_model(self, name: str) -> bool:
        """Would a call to `provider/model` find its provider?"""
        ...

    def left_out(self, name: str, options: Options) -> Sequence[str]:
        """Which of the options do not reach it."""
        ...

    async def count_tokens(self, call: ModelCall) -> int | None:
        """How many tokens a call has, by its provider's own count; None: it has none, or did not say in time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The running server, as the HTTP surface sees it."""

    settings: Settings
    store: Kept
    """What the caller sees of it (S12)."""
    supervisor: Runs
    """Likewise."""
    caller: Caller = THE_ADMIN
    keyring: Keyring
    agents: Agents
    router: Models
    metrics: Metrics
    clock: Clock
    dialect: Dialect
    version: str
    started_at: float
    """Unix time."""
    replica: str
    """What this server is called among others on the same store."""
    mcp: RemoteTools | None = None
    extra_models: tuple[str, ...] = ()
    """Models that no setting names and that are listed all the same."""

    @property
    def agent_name(self) -> str:
        """What /v1/models calls the default agent."""
        return self.agents.default.name

    @property
    def default_model(self) -> str:
        """`provider/model` of the default agent."""
        return self.agents.default.model

    def item_style(self, *, sealed: bool) -> ItemStyle:
        """How /v1/responses shows what is new, and conversations all they have."""
        tool_items = self.settings.server.tool_items or self.dialect.tool_items
        return ItemStyle(tool_items=tool_items, text_outputs=self.dialect.text_outputs, sealed=sealed)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeService(Service):
    """The running server, with everybody's."""

    store: Store
    supervisor: Supervisor

    def seen_by(self, caller: Caller) -> Service:
        """The server as a key of the team sees it (S12): no handler can reach what is not its caller's."""
        store = OwnedStore(self.store, caller.owner, caller.key.limits if caller.key is not None else KeyLimits())
        runs = OwnedRuns(self.supervisor, store, caller, self.keyring)
        parts = {field.name: getattr(self, field.name) for field in fields(Service)}
        return Service(**{**parts, "store": store, "supervisor": runs, "caller": caller})


DIALECT_HEADER: Final = "X-Holdfast-Dialect"
"""A request that has it is answered in the dialect that it names: the page and the terminal speak ours everywhere."""


_SEEN: Final = "holdfast.service"


def whole_service_of(connection: HTTPConnection) -> WholeService:
    """The server with everybody's: for what is nobody's in particular, and for routes that are an admin's alone."""
    service = connection.app.state.service
    assert isinstance(service, WholeService)
    return service


def service_of(connection: HTTPConnection) -> Service:
    """The service behind a request, as its caller sees it, in the dialect that the request speaks."""
    service: Service = whole_service_of(connection)
    caller: Caller = connection.scope[CALLER]
    if caller.key is not None:
        service = connection.scope.get(_SEEN) or whole_service_of(connection).seen_by(caller)
        connection.scope[_SEEN] = service
    name = headers_of(connection.scope).get(DIALECT_HEADER.lower())
    if name is None or name == service.dialect.name:
        return service
    dialect = next((each for each in DIALECTS.values() if each.name == name), service.dialect)
    return replace(service, dialect=dialect)
