"""Items that point at others: `item_reference`, by the id that an answer gave them (P1). Sits on the service."""

from collections.abc import Sequence
from typing import Any

from holdfast.api.chat_messages import MAX_MESSAGES, refuse_too_many
from holdfast.api.items.echo import parse_echo, style_of
from holdfast.api.items.fold import ResponseFold
from holdfast.api.items.items import Item, ItemNames, ItemPlace, ItemStyle, parse_item_id
from holdfast.api.items.said import items_of
from holdfast.api.service import Service
from holdfast.aside import is_many, run_aside
from holdfast.errors import NotFoundError
from holdfast.messages import Message, SystemMessage
from holdfast.runs.history import mend_results
from holdfast.runs.log.reading import fold_log
from holdfast.store.records import RunRecord, StoredMessage


def input_items(record: RunRecord, *, sealed: bool) -> list[Item]:
    """What a response was asked, as items."""
    names = ItemNames(record.id)
    system = parse_echo(record.echo).system
    messages: Sequence[Message] = (*((SystemMessage(text=system),) if system else ()), *record.input)
    return items_of([(message, names) for message in messages], style_of(record, sealed=sealed))


async def resolve_references(service: Service, given: Any, at: str = "input") -> Any:
    """A list of items with its references replaced by what they point at.

    Raises:
        NotFoundError: one points nowhere; param says which.
        RequestError: there are too many.
    """
    if not isinstance(given, list):
        return given
    refuse_too_many(given, at, MAX_MESSAGES, "items")
    resolved: list[Any] = []
    for number, item in enumerate(given):
        if isinstance(item, dict) and _is_reference(item):
            resolved.append(await _find_item(service, str(item.get("id")), f"{at}[{number}].id"))
        else:
            resolved.append(item)
    return resolved


def _is_reference(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "id" in item and "role" not in item)


async def _find_item(service: Service, name: str, at: str) -> Item:
    place = parse_item_id(name)
    for item in await _items_beside(service, place) if place is not None else ():
        # A stored call does not say whether its tool takes a text; as input both mean the same.
        if item["id"] in (name, name.replace("ctc_", "fc_", 1)):
            return item
    raise NotFoundError(f"There is no item {name[:200]!r}.", param=at, code="item_not_found")


async def _items_beside(service: Service, place: ItemPlace) -> list[Item]:
    """The items of the run or the message that an item belongs to."""
    if isinstance(place.of, int):
        path = await service.store.path(place.of)
        return await run_aside(is_many(path), _items_on, path, service.item_style(sealed=True))
    view = await service.supervisor.find(place.of) if await service.store.use_response(place.of) else None
    if view is None:
        return []
    if place.is_input:
        return await run_aside(is_many(view.record.input), input_items, view.record, sealed=True)
    fold = ResponseFold(place.of, style_of(view.record, sealed=True))
    return (await fold_log(service.store, place.of, fold)).render()


def _items_on(path: Sequence[StoredMessage], style: ItemStyle) -> list[Item]:
    return items_of([(stored.message, ItemNames(stored.id)) for stored in mend_results(path)], style)
