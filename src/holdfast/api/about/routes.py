"""Health, models, capabilities, metrics and the description of the API (S1-S3, S10, S11). Sits on the service."""

import asyncio
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.api.about.capabilities import describe_capabilities
from holdfast.api.about.openapi import describe_api
from holdfast.api.answers import json_answer
from holdfast.api.anthropic import is_anthropic
from holdfast.api.requests.paging import query_number
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, WholeService, service_of, whole_service_of
from holdfast.errors import NotFoundError, StoreError
from holdfast.store.coordination import Replica

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 3.0
MAX_MODELS: Final = 1_000
"""On a page of Anthropic's clients, which ask for so many at most."""


async def get_health(request: Request) -> Response:
    """Is the server up? Needs no key and touches nothing."""
    service = whole_service_of(request)
    return json_answer({"status": "ok", "platform": service.dialect.platform, "version": service.version})


async def get_detailed_health(request: Request) -> Response:
    """The state of the server and its parts. Needs no key and tells no secrets; 503 when the store cannot be used."""
    service = whole_service_of(request)
    supervisor = service.supervisor
    store, is_well = await _check_store(service)
    state = "draining" if supervisor.is_closing else "running" if is_well else "degraded"
    detailed: dict[str, Any] = {
        "status": "ok" if is_well else "degraded",
        "state": state,
        "platform": service.dialect.platform,
        "version": service.version,
        "pid": os.getpid(),
        "model": service.default_model,
        "active_runs": supervisor.registry.executing,
        "waiting_runs": supervisor.registry.waiting,
        "max_concurrent_runs": service.settings.limits.max_concurrent_runs,
        "store": store,
        **await _replicas(service),
        "mcp": _mcp(service),
        "started_at": service.started_at,
        "updated_at": service.clock.now(),
    }
    if service.dialect.gateway_health:
        detailed |= {
            "gateway_state": state,
            "platforms": {"api_server": {"state": "connected"}},
            "active_agents": supervisor.registry.executing,
            "exit_reason": None,
            "updated_at": datetime.fromtimestamp(service.clock.now(), UTC).isoformat(),
        }
    return json_answer(detailed, 200 if is_well else 503)


async def _replicas(service: WholeService) -> dict[str, Any]:
    """R17: which server this is, and who else is there."""
    cluster = service.supervisor.cluster
    if cluster is None:
        return {"replica": service.replica, "replicas": []}
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            found = await cluster.replicas()
    except (StoreError, TimeoutError):
        return {"replica": service.replica, "replicas": None}
    return {"replica": service.replica, "replicas": [encode_replica(replica) for replica in found]}


def encode_replica(replica: Replica) -> dict[str, Any]:
    """A server, as others see it."""
    return {
        "name": replica.name,
        "version": replica.version,
        "started_at": replica.started_at,
        "lease_seconds": round(replica.lease_seconds, 3),
        "runs": replica.runs,
    }


async def _check_store(service: WholeService) -> tuple[dict[str, Any], bool]:
    # Paths are this machine's own affair: whoever has no key is told what is wrong, and the log where.
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return {"status": "ok", **await service.store.check()}, True
    except StoreError as error:
        logger.warning("the store cannot be used: %s", error.message)
        return {"status": "unavailable", "message": f"{error.condition} (the server's log says more)"}, False
    except TimeoutError:
        return {"status": "unavailable", "message": f"no answer in {CHECK_SECONDS:g} seconds"}, False


def _mcp(service: Service) -> dict[str, Any]:
    # Why one is not connected may name paths, addresses and keys: that is `holdfast doctor`'s to tell.
    status = service.mcp.status() if service.mcp is not None else {}
    return {name: {"connected": server.connected, "tools": server.tools} for name, server in status.items()}


async def answer_head(request: Request) -> Response:
    """Is there a server? Claude Code asks so before anything else. Needs no key (M1)."""
    return Response()


async def list_models(request: Request) -> Response:
    """The agents, the default one first, and every model that is configured by name."""
    models = _models(service_of(request))
    if is_anthropic(request.scope):
        return json_answer(_cut_models([_as_anthropic(model) for model in models], request))
    return json_answer({"object": "list", "data": models})


async def get_model(request: Request) -> Response:
    """One of the models."""
    name = request.path_params["model"]
    for model in _models(service_of(request)):
        if model["id"] == name:
            return json_answer(_as_anthropic(model) if is_anthropic(request.scope) else model)
    raise _no_model(name, "model")


def _cut_models(models: list[dict[str, Any]], request: Request) -> dict[str, Any]:
    """M1: the page that Anthropic's clients ask for; all of them, if they name no limit.

    Raises:
        RequestError: the limit makes no sense.
        NotFoundError: there is no model to begin after, or to end before.
    """
    limit = query_number(request, "limit", default=MAX_MODELS, low=1, high=MAX_MODELS)
    names = [model["id"] for model in models]

    def place(cursor: str, otherwise: int) -> int:
        name = request.query_params.get(cursor)
        if not name:
            return otherwise
        if name not in names:
            raise _no_model(name, cursor)
        return names.index(name)

    first, end = place("after_id", -1) + 1, place("before_id", len(models))
    is_backwards = end < len(models)
    page = models[first:end][-limit:] if is_backwards else models[first:end][:limit]
    return {
        "data": page,
        "has_more": len(page) < max(0, end - first),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _no_model(name: str, param: str) -> NotFoundError:
    return NotFoundError(f"There is no model {name[:200]!r} here.", param=param, code="model_not_found")


def _as_anthropic(model: dict[str, Any]) -> dict[str, Any]:
    """M1: a model as Anthropic's clients know it."""
    made = datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = model["id"]
    return {"type": "model", "id": name, "display_name": name, "created_at": made, "lifecycle": "active"}


def _models(service: Service) -> list[dict[str, Any]]:
    settings, agents = service.settings, service.agents
    names = dict.fromkeys(
        (
            *(agent.model for agent in agents.listed),
            *settings.fallbacks,
            *(f"{name}/{model}" for name, provider in settings.providers.items() for model in provider.models),
            *settings.models,
            *service.extra_models,
        )
    )

    def model(name: str, owned_by: str) -> dict[str, Any]:
        created = int(service.started_at)
        return {"id": name, "object": "model", "created": created, "owned_by": owned_by, "root": name, "parent": None}

    listed = [{**model(agent.name, service.dialect.owned_by), "answered_by": agent.model} for agent in agents.listed]
    known = {agent.name for agent in agents.listed}
    models = [*listed, *(model(name, name.partition("/")[0]) for name in names if name not in known)]
    return [each for each in models if service.caller.may_use((each["id"], each.get("answered_by", "")))]


async def get_capabilities(request: Request) -> Response:
    """What this server can do, for clients that ask before they try."""
    return json_answer(describe_capabilities(service_of(request), _routes(request)))


async def get_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    service = whole_service_of(request)
    service.metrics.executing.set(service.supervisor.registry.executing)
    if (found := (await _replicas(service))["replicas"]) is not None:
        service.metrics.replicas.set(max(1, len(found)))
    return Response(generate_latest(service.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def get_openapi(request: Request) -> Response:
    """The description of this API."""
    service = service_of(request)
    return json_answer(describe_api(_routes(request), title=service.agent_name, version=service.version))


def _routes(request: Request) -> list[ApiRoute]:
    return [route for route in request.app.routes if isinstance(route, ApiRoute)]


ROUTES: Final[Sequence[BaseRoute]] = (
    ApiRoute("HEAD", "/", answer_head, tag="server", gives=""),
    ApiRoute("GET", "/health", get_health, name="health", tag="server"),
    ApiRoute("GET", "/v1/health", get_health, tag="server"),
    ApiRoute("GET", "/health/detailed", get_detailed_health, name="health_detailed", tag="server"),
    ApiRoute(
        "GET",
        "/v1/models",
        list_models,
        name="models",
        tag="server",
        query=("limit", "after_id", "before_id"),
    ),
    ApiRoute("GET", "/v1/models/{model:path}", get_model, tag="server"),
    ApiRoute("GET", "/v1/capabilities", get_capabilities, name="capabilities", tag="server"),
    ApiRoute("GET", "/metrics", get_metrics, name="metrics", tag="server", gives="text/plain", admin=True),
    ApiRoute("GET", "/openapi.json", get_openapi, name="openapi", tag="server"),
)
