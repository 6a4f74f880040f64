"""What an exception of an agent of one's own makes of its run (A3, R2, C18): never silence.

What it says is told without what looks like a secret. A connection that its own client lost is told as one of ours
would be. Pure. Sits on the vocabulary.
"""

import asyncio
from typing import Final, cast

from holdfast.errors import IncompleteError, StoreError, ToolError, UpstreamError
from holdfast.guests.blame import quote
from holdfast.outcomes import Failed, Incomplete, IncompleteReason, Outcome

_LOST: Final = frozenset({"APIConnectionError", "APITimeoutError", "TransportError", "ClientConnectionError"})
"""What the clients of providers raise when a connection is lost (openai, anthropic, httpx, aiohttp), by name: none of
them needs to be installed."""
_PAYLOAD: Final = "ClientPayloadError"


def outcome_of_exception(error: Exception, *, has_text: bool) -> Outcome:
    """How the run ends.

    Raises:
        UpstreamError, StoreError: as they were; whoever executes runs knows them.
    """
    match error:
        case UpstreamError() | StoreError():
            raise error
        case IncompleteError():
            return Incomplete(reason=cast(IncompleteReason, error.reason), message=error.told)
        case ToolError():
            return Failed(reason="internal", message=error.message)
    message = f"The agent failed: {quote(error)}"
    if _is_lost(error):
        if has_text:
            return Incomplete(reason="stream_interrupted", message=message)
        return Failed(reason="upstream_disconnected", message=message)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status < 600:
        return Failed(reason="upstream_error", message=f"{message} Its provider answered {status}.", status=status)
    return Failed(reason="internal", message=message)


def _is_lost(error: Exception) -> bool:
    if isinstance(error, ConnectionError | asyncio.IncompleteReadError | TimeoutError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _LOST) or _PAYLOAD in names
