"""/v1/conversations: make, read, change and delete conversations and their items (P6).

A conversation is a name that points at a stored message; its items are the messages from there to the root. Responses
move it (`conversation` in POST /v1/responses). Sits on the service and the items of responses.
"""

import asyncio
import secrets
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from holdfast.api.answers import json_answer
from holdfast.api.conversations.schema import AddItems, CreateConversation, UpdateConversation
from holdfast.api.items.echo import style_of
from holdfast.api.items.encrypted_content import ENCRYPTED_REASONING
from holdfast.api.items.input import is_long_input, parse_items
from holdfast.api.items.items import Item, ItemNames, ItemStyle, parse_item_id
from holdfast.api.items.references import resolve_references
from holdfast.api.items.said import Named, items_of, take_call_out, take_out
from holdfast.api.requests.body import convert, parse_object, read_body, read_object
from holdfast.api.requests.headers import check_header_text
from holdfast.api.requests.paging import MAX_ITEMS, PageRequest, cut_page, parse_page
from holdfast.api.requests.targets import conversation_session
from holdfast.api.routing import ApiRoute
from holdfast.api.service import Service, service_of
from holdfast.aside import is_many, run_aside
from holdfast.errors import NotFoundError, RequestError
from holdfast.messages import AssistantMessage, Message, ToolMessage
from holdfast.runs.history import mend_results
from holdfast.store.records import ConversationRecord, StoredMessage

TAG = "conversations"


async def create_conversation(request: Request) -> Response:
    """Begin a conversation, with items to begin with if wanted."""
    service = service_of(request)
    raw = await read_body(request)
    # A client that has nothing to say may send no body at all.
    body = convert(await parse_object(raw) if raw else {}, CreateConversation)
    name = f"conv_{secrets.token_hex(16)}"
    messages = await _parse(service, body.items or [])
    record = ConversationRecord(
        name=name, created_at=service.clock.now(), metadata=_check_metadata(body.metadata or {}), kept=True
    )
    await service.store.put_conversation(record)
    if messages:
        await service.store.add_messages(name, conversation_session(name), messages)
    return json_answer(_render(record))


async def get_conversation(request: Request) -> Response:
    """One conversation, made here or begun by name in a response."""
    return json_answer(_render(await _find(service_of(request), request)))


async def update_conversation(request: Request) -> Response:
    """Change its metadata."""
    service = service_of(request)
    body = convert(await read_object(request), UpdateConversation)
    record = await _find(service, request)
    record = msgspec.structs.replace(record, metadata=_check_metadata(body.metadata))
    await service.store.put_conversation(record)
    return json_answer(_render(record))


async def delete_conversation(request: Request) -> Response:
    """Forget it. Its responses stay."""
    service = service_of(request)
    record = await _find(service, request)
    await service.store.delete_conversation(record.name)
    return json_answer({"id": record.name, "object": "conversation.deleted", "deleted": True})


async def list_items(request: Request) -> Response:
    """Its items, newest first unless `order=asc`."""
    service = service_of(request)
    page = parse_page(request)
    record = await _find(service, request)
    path = await _path(service, record)
    # On another thread: a long conversation takes its time, and others' tokens are not to wait for it.
    items = await asyncio.to_thread(items_of, _named(path), await _style(service, request, record))
    return json_answer(cut_page(items, page))


async def add_items(request: Request) -> Response:
    """Add items to its end."""
    service = service_of(request)
    body = convert(await read_object(request), AddItems)
    record = await _find(service, request)
    messages = await _parse(service, body.items)
    session = conversation_session(record.name)
    await _check_idle(service, record)
    added = await service.store.add_messages(record.name, session, messages)
    items = await run_aside(is_many(added), items_of, _named(added), await _style(service, request, record))
    return json_answer(cut_page(items, PageRequest(limit=max(MAX_ITEMS, len(items)), order="asc")))


async def _parse(service: Service, given: list[Any]) -> list[Message]:
    items = await resolve_references(service, given, "items")
    return await run_aside(is_long_input(items), parse_items, items, "items")


async def get_item(request: Request) -> Response:
    """One item."""
    service = service_of(request)
    record = await _find(service, request)
    _, item = await _find_item(service, request, record)
    return json_answer(item)


async def delete_item(request: Request) -> Response:
    """Take an item out; the others stay as they are."""
    service = service_of(request)
    record = await _find(service, request)
    path, item = await _find_item(service, request, record)
    await _check_idle(service, record)
    place = parse_item_id(item["id"])
    assert place is not None, "an item that was found by its id has one"
    stored = path[-1]
    if item["type"] == "mcp_call" and isinstance(stored.message, ToolMessage):
        # It is a call and its result: the call goes first, and a result without one is shown to nobody.
        for caller in reversed(path):
            said = caller.message
            if isinstance(said, AssistantMessage) and stored.message.call_id in {call.id for call in said.tool_calls}:
                await service.store.put_message(caller.id, take_call_out(said, stored.message.call_id))
                break
    await service.store.put_message(stored.id, take_out(stored.message, place.index))
    return json_answer(_render(record))


async def _find(service: Service, request: Request) -> ConversationRecord:
    name = check_header_text("conversation_id", request.path_params["conversation_id"])
    record = await service.store.get_conversation(name)
    if record is None:
        raise NotFoundError(f"There is no conversation {name!r}.", code="conversation_not_found")
    return record


async def _find_item(
    service: Service, request: Request, record: ConversationRecord
) -> tuple[list[StoredMessage], Item]:
    """An item, and the messages up to the one that it stands in."""
    name = request.path_params["item_id"]
    place = parse_item_id(name)
    path = await _path(service, record) if place is not None else []
    style = await _style(service, request, record)
    for item in await run_aside(is_many(path), items_of, _named(path), style):
        if place is not None and item["id"] == name:
            end = next(number for number, stored in enumerate(path) if stored.id == place.of)
            return path[: end + 1], item
    raise NotFoundError(f"There is no item {name[:200]!r} in {record.name!r}.", code="item_not_found")


async def _path(service: Service, record: ConversationRecord) -> list[StoredMessage]:
    if record.head is None:
        return []
    path = await service.store.path(record.head)
    return await run_aside(is_many(path), mend_results, path)


def _named(path: list[StoredMessage]) -> list[Named]:
    return [(stored.message, ItemNames(stored.id)) for stored in path]


async def _style(service: Service, request: Request, record: ConversationRecord) -> ItemStyle:
    asked = (*request.query_params.getlist("include"), *request.query_params.getlist("include[]"))
    style = service.item_style(sealed=ENCRYPTED_REASONING in asked)
    last = await service.store.get_run(record.run) if record.run is not None else None
    if last is None:
        return style
    # A stored call does not say that its tool takes a text, or is in a namespace; the newest response knows the
    # client's tools.
    known = style_of(last)
    return msgspec.structs.replace(style, custom_tools=known.custom_tools, tool_places=known.tool_places)


async def _check_idle(service: Service, record: ConversationRecord) -> None:
    """What is changed under a running response would be lost: the response goes on from what it began with."""
    if await service.supervisor.active_run(conversation_session(record.name)) is not None:
        raise RequestError(
            f"Conversation {record.name!r} has a response in progress; wait until it has ended.",
            status=409,
            code="conversation_busy",
        )


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in metadata.items()):
        raise RequestError(
            "metadata takes 16 pairs, of keys up to 64 and values up to 512 characters.",
            param="metadata",
            code="invalid_value",
        )
    return metadata


def _render(record: ConversationRecord) -> dict[str, Any]:
    return {
        "id": record.name,
        "object": "conversation",
        "created_at": int(record.created_at),
        "metadata": record.metadata,
    }


_ONE = "/v1/conversations/{conversation_id}"
_PAGE = ("after", "limit", "order", "include")
ROUTES: tuple[BaseRoute, ...] = (
    ApiRoute("POST", "/v1/conversations", create_conversation, name="conversations", tag=TAG, takes=CreateConversation),
    ApiRoute("GET", _ONE, get_conversation, name="conversation", tag=TAG),
    ApiRoute("POST", _ONE, update_conversation, tag=TAG, takes=UpdateConversation),
    ApiRoute("DELETE", _ONE, delete_conversation, tag=TAG, notes="conversation.deleted"),
    ApiRoute("GET", f"{_ONE}/items", list_items, name="conversation_items", tag=TAG, query=_PAGE),
    ApiRoute("POST", f"{_ONE}/items", add_items, tag=TAG, takes=AddItems, query=("include",)),
    ApiRoute("GET", f"{_ONE}/items/{{item_id}}", get_item, tag=TAG, query=("include",)),
    ApiRoute("DELETE", f"{_ONE}/items/{{item_id}}", delete_item, tag=TAG, notes="item.deleted"),
)
