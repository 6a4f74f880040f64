"""Finding responses and their items again (P4, P9, P10, P11): the run behind an id, and what it said.

Nothing is kept beside the run: a stored response is its log, folded. Sits on the service.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.api.items.items import Item, ItemNames, ItemPlace, items_of, parse_item_id
from holdfast.api.responses.response_object import Envelope, envelope_of, parse_echo, render_response
from holdfast.api.service import Service
from holdfast.errors import NotFoundError
from holdfast.ids import RunId, run_of_response
from holdfast.messages import Message, SystemMessage
from holdfast.runs.log.reading import fold_log
from holdfast.runs.view import RunView
from holdfast.store.records import RunRecord


async def find_run(service: Service, name: str, *, param: str | None = None, code: str = "response_not_found") -> RunId:
    """The run behind the id of a response that is kept. Counts as using it (P11).

    Raises:
        NotFoundError: there is none: it never was, was not stored, or was deleted or evicted.
    """
    run = run_of_response(name)
    if run is None or not await service.store.use_response(run):
        raise NotFoundError(f"There is no response {name[:200]!r}.", param=param, code=code)
    return run


async def find_view(service: Service, run: RunId) -> RunView:
    """The run behind a response, live or stored.

    Raises:
        NotFoundError: it is gone.
    """
    view = await service.supervisor.find(run)
    if view is None:
        raise NotFoundError(f"Run {run} is gone.", code="response_not_found")
    return view


def make_envelope(service: Service, record: RunRecord) -> Envelope:
    """What does not change of a response."""
    return envelope_of(record, service.dialect.extras_key)


async def read_response(service: Service, run: RunId) -> dict[str, Any]:
    """The response object as it is now.

    Raises:
        NotFoundError: it is gone.
    """
    view = await find_view(service, run)
    envelope = make_envelope(service, view.record)
    fold = await fold_log(service.store, run, envelope.make_fold())
    return render_response(envelope, fold, status="queued" if view.is_queued else "in_progress")


def input_items(record: RunRecord, *, sealed: bool) -> list[Item]:
    """What a response was asked, as items."""
    names = ItemNames(record.id)
    system = parse_echo(record.echo).system
    messages: Sequence[Message] = (*((SystemMessage(text=system),) if system else ()), *record.input)
    return [item for message in messages for item in items_of(message, names, sealed=sealed)]


async def resolve_references(service: Service, given: Any, at: str = "input") -> Any:
    """A list of items with its references replaced by what they point at.

    Raises:
        NotFoundError: one points nowhere; param says which.
    """
    if not isinstance(given, list):
        return given
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
    items = await _items_beside(service, place) if place is not None else []
    for item in items[place.index : place.index + 1] if place is not None else ():
        if item["id"] == name:
            return item
    raise NotFoundError(f"There is no item {name[:200]!r}.", param=at, code="item_not_found")


async def _items_beside(service: Service, place: ItemPlace) -> list[Item]:
    """The items of the run or the message that an item belongs to."""
    if isinstance(place.of, int):
        path = await service.store.path(place.of)
        return items_of(path[-1].message, ItemNames(place.of), sealed=True) if path else []
    if not await service.store.use_response(place.of):
        return []
    if place.is_input:
        return input_items((await find_view(service, place.of)).record, sealed=True)
    record = (await find_view(service, place.of)).record
    envelope = msgspec.structs.replace(make_envelope(service, record), sealed=True)
    return (await fold_log(service.store, place.of, envelope.make_fold())).render()
