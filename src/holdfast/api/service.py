"""What every handler works with: one value, made by the composition root, found at `request.app.state.service`.

Sits on the runs layer and the ports. Nothing here does anything.
"""

from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import HTTPConnection

from holdfast.api.dialects import Dialect
from holdfast.api.requests.idempotency import LiveRequests
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.telemetry.metrics import Metrics
from holdfast.store.port import Store
from holdfast.tools.port import RemoteTools


class Models(Protocol):
    """Which models can be asked for by name."""

    def has_model(self, name: str) -> bool:
        """Would a call to `provider/model` find its provider?"""
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
    mcp: RemoteTools | None = None
    extra_models: tuple[str, ...] = ()
    """Models that no setting names and that are listed all the same."""
    live_requests: LiveRequests = field(default_factory=LiveRequests)
    """C15: what is being answered now, so that an SDK's own retry finds it."""

    @property
    def default_model(self) -> str:
        """`provider/model` of the agent."""
        return self.settings.model or "demo"


def service_of(connection: HTTPConnection) -> Service:
    """The service behind a request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
