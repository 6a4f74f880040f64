"""What is set aside for a run whose tokens nobody knows yet (S12). Pure; sits on the store's records of limits."""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.agents.request import RunRequest
from holdfast.errors import RequestError
from holdfast.messages import Message
from holdfast.runs.team.caller import Caller
from holdfast.store.accounts import KEPT, Allowance, KeyLimits, Prices

OUTPUT_TOKENS: Final = 1_000
"""For a run that does not say how long its answer may be."""
CHARACTERS_PER_TOKEN: Final = 4


def make_allowance(caller: Caller, request: RunRequest, prices: Prices, now: float) -> Allowance | None:
    """What a run may have; None: there is no limit.

    Raises:
        RequestError: the cost is limited, and the model has no price.
    """
    if caller.key is None or caller.key.limits == KeyLimits():
        return None
    limits = caller.key.limits
    given = _estimate((*request.history, *request.input)) + len(request.instructions) // CHARACTERS_PER_TOKEN
    said = request.options.max_output_tokens or OUTPUT_TOKENS
    price = prices.get(request.model)
    if limits.cost_per_day is not None and price is None:
        raise RequestError(
            f"The key {caller.name} has a limit of cost, and {request.model} has no price ([models] price).",
            status=403,
            param="model",
            code="price_unknown",
        )
    cost = 0.0 if price is None else price.cost(input_tokens=given, cached_tokens=0, output_tokens=said)
    return Allowance(
        key=caller.name,
        owner=caller.owner,
        limits=limits,
        now=now,
        tokens=given + said,
        cost=cost,
        stored_bytes=KEPT * len(msgspec.json.encode(request.input)) if limits.stored_bytes is not None else 0,
        prices=prices,
    )


def _estimate(messages: Sequence[Message]) -> int:
    """About how many tokens a conversation has: pictures count as nothing, and what is stored is not looked at."""
    return sum(len(getattr(message, "text", "") or "") for message in messages) // CHARACTERS_PER_TOKEN
