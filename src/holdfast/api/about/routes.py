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
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.errors import NotFoundError, StoreError
from holdfast.store.coordination import Replica

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 3.0


async def get_health(request: Request) -> Response:
    """Is the server up? Needs no key and touches nothing."""
    service = service_of(request)
    return json_answer({"status": "ok", "platform": service.dialect.platform, "version": service.version})


async def get_detailed_health(request: Request) -> Response:
    """The state of the server and its parts. Needs no key and tells no secrets; 503 when the store cannot be used."""
    service = service_of(request)
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


async def _replicas(service: Service) -> dict[str, Any]:
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


async def _check_store(service: Service) -> tuple[dict[str, Any], bool]:
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


async def list_models(request: Request) -> Response:
    """The agent, and every model that is configured by name."""
    return json_answer({"object": "list", "data": _models(service_of(request))})


async def get_model(request: Request) -> Response:
    """One of the models."""
    name = request.path_params["model"]
    for model in _models(service_of(request)):
        if model["id"] == name:
            return json_answer(model)
    raise NotFoundError(f"There is no model {name[:200]!r} here.", param="model", code="model_not_found")


def _models(service: Service) -> list[dict[str, Any]]:
    settings = service.settings
    names = dict.fromkeys(
        (
            service.default_model,
            *settings.fallbacks,
            *(f"{name}/{model}" for name, provider in settings.providers.items() for model in provider.models),
            *settings.models,
            *service.extra_models,
        )
    )
    names.pop(service.agent_name, None)

    def model(name: str, root: str, owned_by: str) -> dict[str, Any]:
        created = int(service.started_at)
        return {"id": name, "object": "model", "created": created, "owned_by": owned_by, "root": root, "parent": None}

    agent = model(service.agent_name, service.agent_name, service.dialect.owned_by)
    agent["answered_by"] = service.default_model
    return [agent, *(model(name, name, name.partition("/")[0]) for name in names)]


async def get_capabilities(request: Request) -> Response:
    """What this server can do, for clients that ask before they try."""
    return json_answer(describe_capabilities(service_of(request), _routes(request)))


async def get_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    service = service_of(request)
    service.metrics.executing.set(service.supervisor.registry.executing)
    return Response(generate_latest(service.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def get_openapi(request: Request) -> Response:
    """The description of this API."""
    service = service_of(request)
    return json_answer(describe_api(_routes(request), title=service.agent_name, version=service.version))


def _routes(request: Request) -> list[ApiRoute]:
    return [route for route in request.app.routes if isinstance(route, ApiRoute)]


ROUTES: Final[Sequence[BaseRoute]] = (
    ApiRoute("GET", "/health", get_health, name="health", tag="server"),
    ApiRoute("GET", "/v1/health", get_health, tag="server"),
    ApiRoute("GET", "/health/detailed", get_detailed_health, name="health_detailed", tag="server"),
    ApiRoute("GET", "/v1/models", list_models, name="models", tag="server"),
    ApiRoute("GET", "/v1/models/{model:path}", get_model, tag="server"),
    ApiRoute("GET", "/v1/capabilities", get_capabilities, name="capabilities", tag="server"),
    ApiRoute("GET", "/metrics", get_metrics, name="metrics", tag="server"),
    ApiRoute("GET", "/openapi.json", get_openapi, name="openapi", tag="server"),
)
