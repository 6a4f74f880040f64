"""What an exception of a framework makes of its run (A5, R2, C18).

Frameworks wrap what their providers' clients raise, so causes are looked at too; all of it by name, so that none of
them needs to be installed. Pure. Sits on the endings of agents of one's own.
"""

from collections.abc import Iterator
from typing import Final

from holdfast.agents.cuts import outcome_of_failure
from holdfast.agents.own.endings import outcome_of_exception
from holdfast.errors import HoldfastError, UpstreamError
from holdfast.guests.blame import quote
from holdfast.messages import Finish
from holdfast.outcomes import Completed, Failed, Incomplete, Outcome

_LOST: Final = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ModelConnectionError",
        "ModelTimeoutError",
        "TransportError",
        "ClientConnectionError",
        "ClientPayloadError",
    }
)
_TURNS: Final = frozenset({"MaxTurnsExceeded", "GraphRecursionError", "UsageLimitExceeded"})
_FILTERED: Final = frozenset(
    {
        "ContentFilterError",
        "ContentFilterFinishReasonError",
        "ModelRefusalError",
        "OpenAIRefusalError",
        "InputGuardrailTripwireTriggered",
        "OutputGuardrailTripwireTriggered",
        "ToolInputGuardrailTripwireTriggered",
        "ToolOutputGuardrailTripwireTriggered",
    }
)
_LENGTH: Final = frozenset({"LengthFinishReasonError", "IncompleteToolCall"})
_PROVIDER: Final = frozenset({"APIError", "ModelAPIError", "ModelBehaviorError", "JSONDecodeError"})


def outcome_of_finish(finish: Finish | None) -> Outcome:
    """How a run ends whose last turn ended so, and whose framework has no more to say."""
    match finish:
        case "length":
            return Incomplete(reason="max_output_tokens")
        case "refusal":
            return Incomplete(reason="content_filter", message="The model refused to answer.")
        case "content_filter":
            return Incomplete(reason="content_filter")
        case _:
            return Completed()


def outcome_of_error(error: Exception, *, has_text: bool, finish: Finish | None, in_tool: bool) -> Outcome:
    """How the run ends.

    Args:
        error: what the framework raised.
        has_text: has anything been said?
        finish: how the last turn had ended.
        in_tool: a tool was being carried out, so that what was raised says nothing about the model.

    Raises:
        StoreError: as it was; whoever executes runs knows it.
    """
    if isinstance(error, UpstreamError):
        return outcome_of_failure(error, has_text=has_text)
    if isinstance(error, HoldfastError):
        return outcome_of_exception(error, has_text=has_text)
    causes = list(_causes(error))
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    where = f"The agent failed: {quote(error)}"
    if names & _TURNS:
        return Incomplete(reason="max_turns", message=f"The agent used up what it may ask its model: {quote(error)}")
    if names & _FILTERED:
        return Incomplete(reason="content_filter", message=f"The agent was stopped: {type(error).__name__}.")
    if in_tool:
        return Failed(reason="internal", message=where)
    if (cut := outcome_of_finish(finish)) != Completed():
        return cut
    if names & _LENGTH:
        return Incomplete(reason="max_output_tokens")
    for cause in causes:
        status = getattr(cause, "status_code", None)
        if isinstance(status, int) and 400 <= status < 600:
            return Failed(
                reason="upstream_error",
                message=f"{where} Its provider answered {status}.",
                status=status,
                code=_code(cause),
                retry_after_seconds=_retry_after(causes),
            )
    if names & _LOST or any(isinstance(cause, ConnectionError | TimeoutError) for cause in causes):
        if has_text:
            return Incomplete(reason="stream_interrupted", message=f"The agent lost its model: {quote(error)}")
        return Failed(reason="upstream_disconnected", message=where)
    if names & _PROVIDER:
        return Failed(reason="upstream_error", message=where, code=next(filter(None, map(_code, causes)), None))
    return outcome_of_exception(error, has_text=has_text)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it came of; of a group, all that are in it."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
        if each.__cause__ is not None:
            waiting.append(each.__cause__)
        elif each.__context__ is not None and not each.__suppress_context__:
            waiting.append(each.__context__)


def _code(error: BaseException) -> str | None:
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else None


def _retry_after(causes: list[BaseException]) -> float | None:
    for cause in causes:
        headers = getattr(getattr(cause, "response", None), "headers", None)
        try:
            if headers is not None and (said := headers.get("retry-after")) is not None:
                return float(said)
        except (AttributeError, TypeError, ValueError):
            continue
    return None
