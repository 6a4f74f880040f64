"""The description of the API (S11), made from the routes themselves so that it cannot leave one out. No I/O."""

import inspect
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.api.routing import ApiRoute

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF: Final = "#/components/schemas/{name}"
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


_MESSAGES_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object", "properties": {"error_code": {"type": "string"}}},
            },
        },
        "request_id": {"type": ["string", "null"]},
    },
}


def describe_api(routes: Sequence[ApiRoute], *, title: str, version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    taken = [route.takes for route in routes if route.takes is not None]
    schemas, components = msgspec.json.schema_components(taken, ref_template=_REF)
    by_type = dict(zip(map(id, taken), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        body = by_type.get(id(route.takes)) if route.takes is not None else None
        paths.setdefault(route.plain_path, {})[route.method.lower()] = _describe(route, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "summary": "An agent behind the OpenAI API, and Anthropic's"},
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR, "MessagesError": _MESSAGES_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _describe(route: ApiRoute, body: dict[str, Any] | None) -> dict[str, Any]:
    summary, _, rest = (inspect.getdoc(route.handler) or "").partition("\n")
    error = "MessagesError" if route.tag == "messages" else "Error"
    described: dict[str, Any] = {
        "operationId": f"{route.name}_{re.sub(r'[^a-z]+', '_', route.path)}".strip("_"),
        "summary": summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": {
            **_successes(route),
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": {"$ref": _REF.format(name=error)}}},
            },
        },
    }
    if rest.strip():
        described["description"] = rest.strip()
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return described


def _successes(route: ApiRoute) -> dict[str, Any]:
    """By status: what is streamed is 200, whatever the plain answer is."""
    found: dict[str, Any] = {str(route.answers): {"description": "Success"}}
    if route.gives:
        found[str(route.answers)]["content"] = {route.gives: {"schema": {}}}
    if route.streams:
        streamed = found.setdefault("200", {"description": "Success, as a stream"})
        streamed.setdefault("content", {})["text/event-stream"] = {"schema": {}}
    return found


def _parameters(route: ApiRoute) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    in_query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in route.query]
    return in_path + in_query
