"""Lists in pages, as the OpenAI API has them: `after`, `limit`, `order`; first_id, last_id, has_more (P10).

Sits on Starlette's requests; knows nothing of what is listed.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from holdfast.errors import NotFoundError, RequestError

MAX_ITEMS = 100
DEFAULT_ITEMS = 20
MAX_PAGE = 200
"""For lists of our own, which the OpenAI API does not have."""


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list is wanted."""

    after: str | None = None
    limit: int = DEFAULT_ITEMS
    order: Literal["asc", "desc"] = "desc"


def parse_page(request: Request) -> PageRequest:
    """The page that a request asks for.

    Raises:
        RequestError: limit or order makes no sense.
    """
    limit = query_number(request, "limit", default=DEFAULT_ITEMS, low=1, high=MAX_ITEMS)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("order must be asc or desc.", param="order", code="invalid_value")
    return PageRequest(after=request.query_params.get("after"), limit=limit, order="asc" if order == "asc" else "desc")


def cut_page(items: Sequence[dict[str, Any]], page: PageRequest) -> dict[str, Any]:
    """A page of items that are given oldest first.

    Raises:
        NotFoundError: there is no item to begin after.
    """
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        place = next((number for number, item in enumerate(ordered) if item["id"] == page.after), None)
        if place is None:
            raise NotFoundError(f"There is no item {page.after[:200]!r}.", param="after", code="item_not_found")
        ordered = ordered[place + 1 :]
    data = ordered[: page.limit]
    return {
        "object": "list",
        "data": data,
        # Never null: the SDKs' types have a string here.
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > page.limit,
    }


def query_number(request: Request, name: str, *, default: int, low: int, high: int) -> int:
    """A whole number; one that is too large becomes the largest.

    Raises:
        RequestError: it is no number, or too small.
    """
    raw = request.query_params.get(name)
    if raw is None or raw == "":
        return default
    try:
        number = int(raw)
    except ValueError:
        number = low - 1
    if number < low:
        raise RequestError(
            f"{name} must be a whole number of at least {low}, not {raw[:50]!r}.", param=name, code="invalid_value"
        )
    return min(number, high)
