"""What this server can do (S3): features and endpoints by name, as a table. Sits on the service."""

from typing import Any, Final

from holdfast.api.service import Service

_FEATURES: Final = (
    "chat_completions",
    "chat_completions_streaming",
    "responses_api",
    "responses_streaming",
    "responses_websocket",
    "responses_compaction",
    "reasoning_streaming",
    "run_submission",
    "run_status",
    "run_events_sse",
    "run_events_resume",
    "run_stop",
    "run_approval",
    "run_approval_response",
    "run_steering",
    "client_tools",
    "tool_progress_events",
    "session_resources",
    "session_fork",
    "conversations",
    "background_responses",
    "idempotency_keys",
    "detached_runs",
)

_ENDPOINTS: Final[dict[str, tuple[str, str]]] = {
    "health": ("GET", "/health"),
    "health_detailed": ("GET", "/health/detailed"),
    "models": ("GET", "/v1/models"),
    "capabilities": ("GET", "/v1/capabilities"),
    "chat_completions": ("POST", "/v1/chat/completions"),
    "responses": ("POST", "/v1/responses"),
    "response_compact": ("POST", "/v1/responses/compact"),
    "response": ("GET", "/v1/responses/{response_id}"),
    "response_delete": ("DELETE", "/v1/responses/{response_id}"),
    "response_cancel": ("POST", "/v1/responses/{response_id}/cancel"),
    "response_input_items": ("GET", "/v1/responses/{response_id}/input_items"),
    "conversations": ("POST", "/v1/conversations"),
    "conversation": ("GET", "/v1/conversations/{conversation_id}"),
    "conversation_items": ("GET", "/v1/conversations/{conversation_id}/items"),
    "runs": ("POST", "/v1/runs"),
    "run_list": ("GET", "/v1/runs"),
    "run_status": ("GET", "/v1/runs/{run_id}"),
    "run_events": ("GET", "/v1/runs/{run_id}/events"),
    "run_stop": ("POST", "/v1/runs/{run_id}/stop"),
    "run_approval": ("POST", "/v1/runs/{run_id}/approval"),
    "run_messages": ("POST", "/v1/runs/{run_id}/messages"),
    "sessions": ("GET", "/v1/sessions"),
    "session_create": ("POST", "/v1/sessions"),
    "session": ("GET", "/v1/sessions/{session_id}"),
    "session_update": ("PATCH", "/v1/sessions/{session_id}"),
    "session_delete": ("DELETE", "/v1/sessions/{session_id}"),
    "session_messages": ("GET", "/v1/sessions/{session_id}/messages"),
    "session_fork": ("POST", "/v1/sessions/{session_id}/fork"),
    "metrics": ("GET", "/metrics"),
    "openapi": ("GET", "/openapi.json"),
}


def describe_capabilities(service: Service) -> dict[str, Any]:
    """The answer of /v1/capabilities."""
    dialect, settings = service.dialect, service.settings
    features: dict[str, Any] = dict.fromkeys(_FEATURES, True)
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
        "auth": {"type": "bearer", "required": bool(settings.server.api_key)},
        "runtime": {
            "mode": "server_agent",
            "tool_execution": "server",
            "split_runtime": False,
            "description": "The agent and its tools run on the API-server host; tools that a request brings along "
            "are carried out by the client.",
        },
        "features": features,
        "endpoints": {name: {"method": method, "path": path} for name, (method, path) in _ENDPOINTS.items()},
    }
