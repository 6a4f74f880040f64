"""What every handler works with: one value, made by the composition root, found at `request.app.state.service`.

Sits on the runs layer and the ports. Nothing here does anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from starlette.requests import HTTPConnection

from holdfast.api.dialects import DIALECTS, Dialect
from holdfast.api.items.items import ItemStyle
from holdfast.api.requests.headers import headers_of
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.port import Store
from holdfast.tools.port import RemoteTools
from holdfast.upstream.port import Options


class Models(Protocol):
    """Which models can be asked for by name."""

    def has_model(self, name: str) -> bool:
        """Would a call to `provider/model` find its provider?"""
        ...

    def left_out(self, name: str, options: Options) -> Sequence[str]:
        """Which of the options do not reach it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The running server, as the HTTP surface sees it."""

    settings: Settings
    store: Store
    supervisor: Supervisor
    router: Models
    metrics: Metrics
    clock: Clock
    dialect: Dialect
    agent_name: str
    """What /v1/models calls the agent."""
    version: str
    started_at: float
    """Unix time."""
    replica: str
    """What this server is called among others on the same store."""
    mcp: RemoteTools | None = None
    extra_models: tuple[str, ...] = ()
    """Models that no setting names and that are listed all the same."""

    @property
    def default_model(self) -> str:
        """`provider/model` of the agent."""
        return self.settings.model or "demo"

    def item_style(self, *, sealed: bool) -> ItemStyle:
        """How /v1/responses shows what is new, and conversations all they have."""
        tool_items = self.settings.server.tool_items or self.dialect.tool_items
        return ItemStyle(tool_items=tool_items, text_outputs=self.dialect.text_outputs, sealed=sealed)


DIALECT_HEADER: Final = "X-Holdfast-Dialect"
"""A request that has it is answered in the dialect that it names: the page and the terminal speak ours everywhere."""


def service_of(connection: HTTPConnection) -> Service:
    """The service behind a request, in the dialect that the request speaks."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    name = headers_of(connection.scope).get(DIALECT_HEADER.lower())
    if name is None or name == service.dialect.name:
        return service
    dialect = next((each for each in DIALECTS.values() if each.name == name), service.dialect)
    return replace(service, dialect=dialect)
