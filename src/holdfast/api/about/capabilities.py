"""What this server can do (S3): features by name, as a table, and endpoints, from the routes. Sits on the service."""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service

_FEATURES: Final = (
    "chat_completions",
    "chat_completions_streaming",
    "responses_api",
    "responses_streaming",
    "responses_websocket",
    "responses_compaction",
    "messages_api",
    "messages_streaming",
    "reasoning_streaming",
    "run_submission",
    "run_status",
    "run_events_sse",
    "run_events_resume",
    "run_stop",
    "run_approval",
    "run_approval_response",
    "run_steering",
    "approval_events",
    "client_tools",
    "tool_progress_events",
    "session_resources",
    "session_fork",
    "conversations",
    "background_responses",
    "idempotency_keys",
    "detached_runs",
)


def describe_capabilities(service: Service, routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """The answer of /v1/capabilities; what is mounted says which endpoints there are."""
    dialect, settings = service.dialect, service.settings
    features: dict[str, Any] = {name: name not in dialect.unspoken for name in _FEATURES}
    features |= {
        "cors": bool(settings.server.cors_origins),
        "session_continuity_header": dialect.header("Session-Id"),
        "session_key_header": dialect.header("Session-Key"),
        "idempotency_header": "Idempotency-Key",
        "run_id_header": dialect.header("Run-Id"),
    }
    return {
        "object": dialect.capabilities_object,
        "platform": dialect.platform,
        "version": service.version,
        "dialect": dialect.name,
        "model": service.agent_name,
        "auth": {"type": "bearer", "required": service.keyring.is_needed},
        "runtime": {
            "mode": "server_agent",
            "tool_execution": "server",
            "split_runtime": False,
            "description": "The agent and its tools run on the API-server host; tools that a request brings along "
            "are carried out by the client.",
        },
        "features": features,
        "endpoints": {
            route.capability: {"method": route.method, "path": route.plain_path} for route in routes if route.capability
        },
    }
