"""What is true of every response and every stream of one (P2, P3), checked against both schemas that we answer to."""

from typing import Any

import openresponses_types.types as spec
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.serving import Answer

RESPONSES = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

_SDK_RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)
_SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
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


def check_response(response: dict[str, Any]) -> dict[str, Any]:
    """A response object that both schemas accept."""
    _SDK_RESPONSE.validate_python(response)
    spec.ResponseResource.model_validate(response)
    return response


def check_event(event: dict[str, Any]) -> None:
    """An event of a stream that both schemas accept, under its own name."""
    assert _SDK_EVENT.validate_python(event).type == event["type"]
    _SPEC_EVENTS[event["type"]].model_validate(event)


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
            case "response.function_call_arguments.delta":
                arguments[index] += event["delta"]
            case "response.function_call_arguments.done":
                assert event["arguments"] == arguments[index]
            case "response.output_item.done":
                item = event["item"]
                added = open_items.pop(index)
                assert (item["id"], item["type"]) == (added["id"], added["type"])
                assert item["status"] in ("completed", "incomplete")
                assert item.get("arguments", "") == arguments[index]
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
