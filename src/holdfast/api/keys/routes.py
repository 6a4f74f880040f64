"""`/v1/keys`, `/v1/usage`, `/v1/audit` (S12-S14): made, listed and revoked by an admin; everybody sees what they used.

Sits on the keyring and the store.
"""

import re
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.answers import json_answer
from holdfast.api.callers import DETAILS
from holdfast.api.keys.encode import encode_entry, encode_key, encode_usage_row
from holdfast.api.keys.schema import KeyBody, make_record
from holdfast.api.requests.body import convert, read_object
from holdfast.api.requests.paging import query_number
from holdfast.api.routing import ApiRoute
from holdfast.api.service import service_of, whole_service_of
from holdfast.errors import NotFoundError, RequestError
from holdfast.runs.team.caller import ADMIN_NAME
from holdfast.runs.team.keyring import hash_key, make_secret
from holdfast.store.accounts import UsageFilter

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
MAX_ENTRIES: Final = 10_000


async def create_key(request: Request) -> Response:
    """Make a key. The answer has it, this once."""
    service = service_of(request)
    secret = make_secret()
    key = make_record(convert(await read_object(request), KeyBody), hash_key(secret.encode()), service.clock.now())
    await service.keyring.add(key)
    request.scope[DETAILS] = {"what": key.name, "role": key.role}
    return json_answer({**encode_key(key), "hash": key.hash, "key": secret}, 201)


async def list_keys(request: Request) -> Response:
    """All keys, without the keys themselves."""
    keys = service_of(request).keyring.keys
    return json_answer({"object": "list", "data": [encode_key(key) for key in keys], "has_more": False})


async def delete_key(request: Request) -> Response:
    """Revoke a key: its streams are cut and its runs stopped. What is its owner's stays."""
    service = service_of(request)
    name = request.path_params["name"]
    if not await service.keyring.revoke(name):
        raise NotFoundError(f"There is no key {name[:200]!r}.", code="key_not_found")
    return json_answer({"name": name, "object": "key.deleted", "deleted": True})


async def get_me(request: Request) -> Response:
    """Whose key this is."""
    caller = service_of(request).caller
    if caller.key is None:
        return json_answer({"object": "key", "name": ADMIN_NAME, "role": "admin"})
    return json_answer(encode_key(caller.key))


async def get_usage(request: Request) -> Response:
    """Requests, tokens and cost, by day, key, agent and model: the caller's own; for an admin everybody's."""
    service, query = service_of(request), request.query_params
    for name in ("since", "until"):
        if query.get(name) and not _DAY.fullmatch(query[name]):
            raise RequestError(f"{name} must be a day such as 2027-01-31.", param=name, code="invalid_value")
    wanted = query.get("key") or None
    if not service.caller.is_admin:
        if wanted not in (None, service.caller.name):
            raise NotFoundError(f"There is no key {wanted[:200]!r}.", param="key", code="key_not_found")
        wanted = service.caller.name
    chosen = UsageFilter(
        key="" if wanted == ADMIN_NAME else wanted,
        since=query.get("since") or "",
        until=query.get("until") or UsageFilter().until,
    )
    rows = await whole_service_of(request).store.read_usage(chosen)
    data = [encode_usage_row(row, service.agent_name, service.keyring.prices) for row in rows]
    return json_answer({"object": "list", "data": data, "has_more": False})


async def get_audit(request: Request) -> Response:
    """The audit log as JSON lines, the oldest first; `after` is the id of the last line that was read."""
    after = query_number(request, "after", default=0, low=0, high=2**53)
    limit = query_number(request, "limit", default=MAX_ENTRIES, low=1, high=MAX_ENTRIES)
    entries = await whole_service_of(request).store.read_audit(after, limit)
    lines = b"".join(msgspec.json.encode(encode_entry(entry)) + b"\n" for entry in entries)
    return Response(lines, media_type=LINES)


LINES: Final = "application/x-ndjson"
ROUTES: Final = (
    ApiRoute(
        "POST",
        "/v1/keys",
        create_key,
        name="key_create",
        tag="keys",
        takes=KeyBody,
        answers=201,
        admin=True,
        notes="key.made",
    ),
    ApiRoute("GET", "/v1/keys", list_keys, name="keys", tag="keys", admin=True),
    ApiRoute("GET", "/v1/me", get_me, name="me", tag="keys"),
    ApiRoute("DELETE", "/v1/keys/{name}", delete_key, name="key_delete", tag="keys", admin=True, notes="key.revoked"),
    ApiRoute("GET", "/v1/usage", get_usage, name="usage", tag="keys", query=("key", "since", "until")),
    ApiRoute(
        "GET", "/v1/audit", get_audit, name="audit", tag="keys", query=("after", "limit"), gives=LINES, admin=True
    ),
)
