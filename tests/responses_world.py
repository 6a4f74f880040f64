"""What is true of every response and every stream of one (P2, P3), checked against both schemas that we answer to."""

import json
from typing import Any, get_args

import openresponses_types.types as spec
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.outcomes import ActionReason, CancelledReason, IncompleteReason
from tests.serving import Answer

RESPONSES = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

_SDK_RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)
_SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_SDK_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_SPEC_ITEM: TypeAdapter[Any] = TypeAdapter(
    spec.Message | spec.FunctionCall | spec.FunctionCallOutput | spec.ReasoningBody | spec.CompactionBody
)
_SPEC_EVENTS: dict[str, type[Any]] = {
    "response.created": spec.ResponseCreatedStreamingEvent,
    "response.queued": spec.ResponseQueuedStreamingEvent,
    "response.in_progress": spec.ResponseInProgressStreamingEvent,
    "response.completed": spec.ResponseCompletedStreamingEvent,
    "response.failed": spec.ResponseFailedStreamingEvent,
    "response.incomplete": spec.ResponseIncompleteStreamingEvent,
    "response.output_item.added": spec.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": spec.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": spec.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": spec.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": spec.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": spec.ResponseOutputTextDoneStreamingEvent,
    "response.reasoning_summary_part.added": spec.ResponseReasoningSummaryPartAddedStreamingEvent,
    "response.reasoning_summary_part.done": spec.ResponseReasoningSummaryPartDoneStreamingEvent,
    "response.reasoning_summary_text.delta": spec.ResponseReasoningSummaryDeltaStreamingEvent,
    "response.reasoning_summary_text.done": spec.ResponseReasoningSummaryDoneStreamingEvent,
    "response.function_call_arguments.delta": spec.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": spec.ResponseFunctionCallArgumentsDoneStreamingEvent,
}
"""The closed set of Open Responses, as far as we use it."""
_BEYOND: tuple[str, ...] = ("mcp_call", "custom_tool_call")
"""What that set has no word for: a server's tool, and a custom tool of the client's."""
_REASONS = frozenset(
    reason
    for reasons in (IncompleteReason, CancelledReason, ActionReason)
    for reason in get_args(reasons)
    if reason != "client_tools"
)


def check_response(response: dict[str, Any]) -> dict[str, Any]:
    """A response object that both schemas accept."""
    _SDK_RESPONSE.validate_python(_for_sdk(response))
    within = [item for item in response["output"] if item["type"] not in _BEYOND]
    spec.ResponseResource.model_validate({**response, "output": within})
    # What OpenAI's own description of its API demands and neither schema above checks.
    assert isinstance(response["usage"], dict) and response.get("user", "") is not None
    return response


def check_item(item: dict[str, Any]) -> None:
    """An item that both schemas accept."""
    _SDK_ITEM.validate_python(_item_for_sdk(item))
    if item["type"] == "mcp_call":
        assert item["id"].startswith("mcp_") and item["approval_request_id"] is None
        assert (item["error"] is not None) == (item["status"] in ("failed", "incomplete"))
        assert isinstance(item["output"], str) == (item["status"] != "in_progress")
    elif item["type"] not in _BEYOND:
        _SPEC_ITEM.validate_python(item)


def check_event(event: dict[str, Any]) -> None:
    """An event of a stream that both schemas accept, under its own name."""
    kind = event["type"]
    shown = as_the_sdk_types_it(event)
    if "item" in event:
        check_item(event["item"])
    assert _SDK_EVENT.validate_python(shown).type == kind
    if kind == "response.function_call_arguments.done":
        assert event["name"]
    if "response" in event:
        check_response(event["response"])
    elif kind in _SPEC_EVENTS and event.get("item", {}).get("type") not in _BEYOND:
        _SPEC_EVENTS[kind].model_validate(event)
    else:
        assert kind.startswith(("response.mcp_call", "response.custom_tool_call")) or "item" in event


_REFUSALS = (
    "authentication_error",
    "permission_error",
    "model_not_found",
    "insufficient_quota",
    "context_length_exceeded",
)


def as_the_sdk_types_it(event: dict[str, Any]) -> dict[str, Any]:
    """An event with what the SDK's types name too few of replaced by what they name; the SDK itself takes any."""
    shown = dict(event)
    if "response" in event:
        shown["response"] = _for_sdk(event["response"])
    if "item" in event:
        shown["item"] = _item_for_sdk(event["item"])
    return shown


def _for_sdk(response: dict[str, Any]) -> dict[str, Any]:
    """With what the SDK's types name too few of replaced by what they name; the SDK itself takes any."""
    details = response["incomplete_details"]
    if details is not None:
        assert details["reason"] in _REASONS
        details = {"reason": "max_output_tokens"}
    error = response["error"]
    if error is not None and error["code"] in _REFUSALS:
        error = {**error, "code": "server_error"}
    return {
        **response,
        "error": error,
        "incomplete_details": details,
        "output": [_item_for_sdk(item) for item in response["output"]],
    }


def _item_for_sdk(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "mcp_call" or item["error"] is None:
        return item
    assert isinstance(item["error"], str)
    return {**item, "error": None}


def read_events(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream whose frames have the right form."""
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.frames[-1] == "data: [DONE]"
    events = answer.data[:-1]
    for frame, event in zip(answer.frames, events, strict=False):
        name, data = frame.split("\n")
        assert name == f"event: {event['type']}"
        assert data.startswith("data: ")
    return events


def check_stream(answer: Answer) -> list[dict[str, Any]]:
    """A whole stream that keeps every promise of P3; its events."""
    events = read_events(answer)
    check_events(events)
    return events


def check_events(events: list[dict[str, Any]]) -> None:
    """Events from the first to the last, in the right order and of the right form."""
    for event in events:
        check_event(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    items = _follow_items(events)
    final = events[-1]["response"]
    check_response(final)
    assert final["output"] == [items[index] for index in range(len(items))]


def _follow_items(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Play the events as a client would; every item as it was when it was done."""
    open_items: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    words: dict[tuple[int, int], str] = {}
    arguments: dict[int, str] = {}
    for event in events:
        index = event.get("output_index", -1)
        part = (index, event.get("content_index", event.get("summary_index", -1)))
        if "item_id" in event:
            assert event["item_id"] == open_items[index]["id"]
        match event["type"]:
            case "response.output_item.added":
                assert index == len(open_items) + len(done)
                open_items[index] = event["item"]
                arguments[index] = ""
            case "response.content_part.added" | "response.reasoning_summary_part.added":
                assert event["part"]["text"] == ""
                words[part] = ""
            case "response.output_text.delta" | "response.reasoning_summary_text.delta":
                assert event["type"] != "response.output_text.delta" or event["logprobs"] == []
                words[part] += event["delta"]
            case "response.output_text.done" | "response.reasoning_summary_text.done":
                assert event["type"] != "response.output_text.done" or event["logprobs"] == []
                assert event["text"] == words[part]
            case "response.content_part.done" | "response.reasoning_summary_part.done":
                assert event["part"]["text"] == words.pop(part)
            case (
                "response.function_call_arguments.delta"
                | "response.mcp_call_arguments.delta"
                | "response.custom_tool_call_input.delta"
            ):
                arguments[index] += event["delta"]
            case "response.function_call_arguments.done" | "response.mcp_call_arguments.done":
                assert event["arguments"] == arguments[index]
                # U13: nobody has to complete it.
                json.loads(event["arguments"])
            case "response.custom_tool_call_input.done":
                assert event["input"] == arguments[index]
            case "response.output_item.done":
                item = event["item"]
                added = open_items.pop(index)
                assert (item["id"], item["type"]) == (added["id"], added["type"])
                assert item["status"] in ("completed", "incomplete", "failed")
                assert item["type"] != "function_call" or item["status"] == "completed"
                assert item.get("arguments", item.get("input", "")) == arguments[index]
                done[index] = item
            case "response.in_progress":
                assert event["response"]["status"] == "in_progress"
            case _:
                pass
    assert open_items == {} and words == {}
    return done


def types_of(response: dict[str, Any]) -> list[str]:
    """The kinds of a response's items, in order."""
    return [item["type"] for item in response["output"]]


def text_of(response: dict[str, Any]) -> str:
    """All text of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])
