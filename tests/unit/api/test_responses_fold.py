"""The fold of a log into a response: the same however the log is cut, whenever it is read (P3, P9)."""

import itertools
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.items.items import CUT_CALL, ItemStyle
from holdfast.api.responses.encode import MAX_BEATS, ResponseEncoder
from holdfast.api.responses.response_object import Envelope, render_response, status_of, terminal_event
from holdfast.errors import StoreUnavailableError
from holdfast.events import (
    Answered,
    ApprovalAsked,
    ArgumentsAdded,
    Batch,
    Event,
    ReasoningAdded,
    ReasoningSigned,
    RunEnded,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    UpstreamRetried,
    Warned,
)
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.outcomes import (
    Cancelled,
    CancelledReason,
    Completed,
    Failed,
    Incomplete,
    IncompleteReason,
    Outcome,
    RequiresAction,
    outcome_reason,
)
from tests.responses_world import check_events, check_response

RUN = RunId("run_0a")
BEGAN = RunStarted(run=RUN, session=SessionId("s"), model="p/m")
CALL = CallId("call_1")
STYLE = ItemStyle(client_tools=frozenset({"theirs", "_theirs", "patch"}), custom_tools=frozenset({"patch"}))
PAIRS = msgspec.structs.replace(STYLE, tool_items="function_call")


def make_envelope(**changes: Any) -> Envelope:
    parameters: dict[str, Any] = {
        "previous_response_id": None,
        "conversation": None,
        "instructions": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
        "metadata": {},
        "max_output_tokens": None,
        "max_tool_calls": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "truncation": "disabled",
        "store": True,
        "background": False,
        "service_tier": "default",
        "safety_identifier": None,
        "prompt_cache_key": None,
    }
    envelope = Envelope(
        run=RUN,
        created_at=1000.0,
        model="p/m",
        parameters=parameters,
        style=STYLE,
        own_events=False,
        beat_seconds=10.0,
        answers_as="",
        extras_key="holdfast",
    )
    return msgspec.structs.replace(envelope, **changes)


def ended(outcome: Outcome) -> RunEnded:
    return RunEnded(outcome=outcome, usage=Usage(input_tokens=3, output_tokens=2))


LOG: list[Event] = [
    BEGAN,
    TurnStarted(turn=0, model="p/m"),
    UpstreamRetried(model="p/m", attempt=1, error="reset", wait_seconds=0.1),
    ReasoningAdded(text="Hm"),
    ReasoningAdded(text=", well"),
    ReasoningAdded(text="In short", summary=True),
    ReasoningSigned(metadata={"anthropic": {"signature": "x"}}),
    ReasoningSigned(metadata={"anthropic": {"redacted": "y"}}),
    TextAdded(text="I "),
    TextAdded(text=""),
    TextAdded(text='look: "é😀\\"\n'),
    ToolCallBegan(index=0, call_id=CALL, name="read_file"),
    ToolCallBegan(index=1, call_id=CallId("call_2"), name="theirs"),
    ArgumentsAdded(index=1, text="{"),
    ArgumentsAdded(index=0, text='{"a":'),
    ArgumentsAdded(index=1, text="}"),
    ToolCallAnnotated(index=1, metadata={"chat": {"extra_content": {"k": 1}}}),
    ArgumentsAdded(index=0, text="1}"),
    TextAdded(text="and wait."),
    Answered(finish="tool_calls", model="p/m-2", usage=Usage(input_tokens=1)),
    ToolStarted(call_id=CALL, name="read_file", arguments='{"a":1}', label="read_file"),
    ApprovalAsked(call_id=CALL, name="read_file", arguments="{}", seconds=3),
    Warned(message="careful"),
    ToolFinished(call_id=CALL, name="read_file", output="text"),
    Steered(message=user_says("more")),
    TurnStarted(turn=1, model="p/m-2"),
    TextAdded(text="Done"),
    Answered(finish="stop", model="p/m-2"),
    ToolCallReady(call_id=CallId("call_2"), name="theirs", arguments="{}"),
    ended(RequiresAction(reason="client_tools", calls=(CallId("call_2"),))),
]


def batches_of(events: list[Event], cuts: list[int], gaps: list[float]) -> list[Batch]:
    """A log, cut anywhere, with any time between two batches."""
    edges = sorted({0, len(events), *(cut % (len(events) + 1) for cut in cuts)})
    batches, at = [], 1000.0
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        at += gaps[number % len(gaps)]
        batches.append(Batch(EventNumber(low), at, events[low:high]))
    return batches


def play(batches: list[Batch], style: ItemStyle = STYLE, **options: Any) -> list[dict[str, Any]]:
    encoder = ResponseEncoder(make_envelope(style=style), lambda: 0.0, sse=False, **options)
    return decode(encoder.begin() + b"".join(encoder.encode([batch]) for batch in batches))


def decode(lines: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in lines.splitlines()]


def without_numbers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "sequence_number"} for event in events]


def fold(events: list[Event], **changes: Any) -> dict[str, Any]:
    envelope = make_envelope(**changes)
    folded = envelope.make_fold()
    folded.add_batch(Batch(EventNumber(0), 1001.0, events))
    return render_response(envelope, folded)


@pytest.mark.parametrize(
    ("style", "calls"),
    [
        (STYLE, ["mcp_call"]),
        (PAIRS, ["function_call", "function_call_output"]),
    ],
)
def test_everything_that_can_happen_makes_a_sound_stream(style: ItemStyle, calls: list[str]) -> None:
    """P2.a, P2.e, P2.f, P3.a, P3.b, P3.c: every kind of event, in one log."""
    events = play(batches_of(LOG, [], [0.0]), style)
    check_events(events)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == [
        *["reasoning", "reasoning", "message"],
        *calls,
        *["message", "function_call"],
    ]
    assert [part["text"] for part in response["output"][0]["summary"]] == ["Hm, well", "In short"]
    assert response["output"][1]["summary"] == []
    assert response["output"][2]["content"][0]["text"] == 'I look: "é😀\\"\nand wait.'
    assert [item["arguments"] for item in (response["output"][3], response["output"][-1])] == ['{"a":1}', "{}"]
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["model"] == "p/m-2"


def test_a_servers_tool_is_shown_as_one_item_with_its_own_events() -> None:
    """P2.c, P3.c: from its arguments to its result; the item says what came of it."""
    events = play(batches_of(LOG, [], [0.0]))
    item = next(event["item"] for event in events if event.get("item", {}).get("type") == "mcp_call")
    told = [event for event in events if event.get("item_id", event.get("item", {}).get("id")) == item["id"]]
    assert [event["type"].removeprefix("response.") for event in told] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    assert (item["arguments"], item["output"], item["status"]) == ("", None, "in_progress")
    assert told[-1]["item"] == {
        "id": "mcp_0a_3",
        "type": "mcp_call",
        "status": "completed",
        "server_label": "holdfast",
        "name": "read_file",
        "arguments": '{"a":1}',
        "output": "text",
        "error": None,
        "approval_request_id": None,
    }


@pytest.mark.parametrize(
    ("result", "status", "event"),
    [
        ({}, "completed", "response.mcp_call.completed"),
        ({"output": ""}, "completed", "response.mcp_call.completed"),
        ({"failed": True}, "failed", "response.mcp_call.failed"),
        ({"failed": True, "executed": "no"}, "failed", "response.mcp_call.failed"),
        ({"failed": True, "executed": "unknown"}, "incomplete", "response.mcp_call.failed"),
        (None, "incomplete", "response.mcp_call.failed"),
    ],
)
def test_what_came_of_a_servers_tool_is_told(result: dict[str, Any] | None, status: str, event: str) -> None:
    """P2.c, P3.c, R8.c: it worked, failed, was refused, was running when the run was stopped, or was never heard of."""
    said = {"output": "said", **(result or {})}
    finished = [] if result is None else [ToolFinished(call_id=CALL, name="mcp__files__read__all", **said)]
    log = [BEGAN, *called("mcp__files__read__all"), *finished, ended(Incomplete(reason="server_restart"))]
    events = play([Batch(EventNumber(0), 1000.0, log)])
    check_events(events)
    [item] = events[-1]["response"]["output"]
    assert (item["server_label"], item["name"], item["status"]) == ("files", "read__all", status)
    assert events[-3]["type"] == event
    assert item["output"] == (CUT_CALL if result is None else said["output"])
    assert item["error"] == (None if status == "completed" else item["output"])


def called(name: str, arguments: str = "{}") -> list[Event]:
    return [
        ToolCallBegan(index=0, call_id=CALL, name=name),
        ArgumentsAdded(index=0, text=arguments),
        Answered(finish="tool_calls", model="m"),
    ]


def test_a_custom_tool_of_the_clients_is_called_with_its_text() -> None:
    """P10.b: as its own kind of item, with its own events."""
    over = ended(RequiresAction(reason="client_tools", calls=(CALL,)))
    log = [BEGAN, *called("patch", '{"input": "*** Begin\\n+é"}'), over]
    events = play([Batch(EventNumber(0), 1000.0, log)])
    check_events(events)
    [item] = events[-1]["response"]["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin\n+é")
    odd = fold([BEGAN, *called("patch", '{"patch": 1}'), over])
    assert odd["output"][0]["input"] == '{"patch": 1}'


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 100), max_size=12),
    gaps=st.lists(st.floats(0, 60), min_size=1, max_size=8),
    after=st.integers(-1, 60),
)
def test_the_events_are_the_same_however_the_log_is_cut(cuts: list[int], gaps: list[float], after: int) -> None:
    """P3.b, P9.c: event N is event N; what follows a number is the rest of the stream."""
    whole = play(batches_of(LOG, cuts, gaps))
    beatless = [event for n, event in enumerate(whole) if n < 2 or event["type"] != "response.in_progress"]
    told = without_numbers(play(batches_of(LOG, [], [0.0])))
    # The terminal event tells when the run ended; all else is told by what happened alone.
    assert without_numbers(beatless)[:-1] == told[:-1]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert play(batches_of(LOG, cuts, gaps), starting_after=after) == whole[after + 1 :]


@settings(max_examples=60, deadline=None)
@given(gaps=st.lists(st.floats(0, 60), min_size=1, max_size=8), polls=st.lists(st.floats(0, 1), max_size=20))
def test_a_reader_in_silence_gets_the_numbers_that_a_replay_has(gaps: list[float], polls: list[float]) -> None:
    """P9.c: whenever the live stream shows a sign of life, the events after it keep their numbers."""
    batches = batches_of(LOG, [5, 9, 20, 23], gaps)
    now = 1000.0
    encoder = ResponseEncoder(make_envelope(), lambda: now, sse=False)
    lines = encoder.begin()
    previous = 1000.0
    for batch in batches:
        # A batch is told a moment after its time; until then the reader may look as often as it likes.
        for part in sorted(polls):
            now = previous + part * (batch.at + 0.5 - previous)
            lines += encoder.keepalive()
        previous = batch.at + 0.5
        lines += encoder.encode([batch])
    assert decode(lines) == play(batches)


def test_what_was_long_in_being_saved_has_the_number_of_a_replay_although_a_beat_had_it() -> None:
    """P9.c: a slow disk looks like a silent model; who goes on from a number that they saw later misses nothing."""
    batches = batches_of(LOG, [5, 9], [5.0])
    now = 1000.0
    encoder = ResponseEncoder(make_envelope(), lambda: now, sse=False)
    lines = encoder.begin() + encoder.encode(batches[:1])
    before = len(decode(lines))
    for _ in range(3):
        now += 15.0
        lines += encoder.keepalive()
    told = decode(lines + encoder.encode(batches[1:]))
    assert [event["type"] for event in told[before:][:3]] == ["response.in_progress"] * 3
    assert told[:before] + told[before + 3 :] == play(batches)


def test_a_clock_that_was_set_years_ahead_makes_no_endless_stream() -> None:
    """P3.e, S7.g: a silence has so many signs of life and no more, live and replayed, and the numbers are the same."""
    batches = batches_of(LOG, [5], [0.0, 1e9])
    told = play(batches)
    assert len(told) == len(play(batches_of(LOG, [], [0.0]))) + MAX_BEATS
    now = 1000.0
    encoder = ResponseEncoder(make_envelope(), lambda: now, sse=False)
    lines = encoder.begin() + encoder.encode(batches[:1])
    for _ in range(MAX_BEATS + 5):
        now += 1e6
        lines += encoder.keepalive()
    assert decode(lines + encoder.encode(batches[1:])) == told


def test_text_deltas_are_written_as_any_other_event() -> None:
    """P3.a, P3.b: the templated form is the same JSON, as SSE and as a message."""
    batch = Batch(EventNumber(0), 1000.0, [BEGAN, TextAdded(text='a\n\u2028"é')])
    plain, sse = (ResponseEncoder(make_envelope(), lambda: 0.0, sse=sse) for sse in (False, True))
    frame = plain.encode([batch]).splitlines()[-1]
    assert msgspec.json.decode(frame) == {
        "type": "response.output_text.delta",
        "sequence_number": 2,
        "item_id": "msg_0a_0",
        "output_index": 0,
        "content_index": 0,
        "delta": 'a\n\u2028"é',
        "logprobs": [],
    }
    assert sse.encode([batch]).endswith(b"event: response.output_text.delta\ndata: " + frame + b"\n\n")


def test_silence_before_a_beat_is_due_is_a_comment_with_one_newline() -> None:
    """P3.e, C7.a."""
    now = 1001.0
    encoder = ResponseEncoder(make_envelope(), lambda: now)
    encoder.begin()
    assert encoder.keepalive() == b": keepalive\n"
    now = 1010.0
    assert encoder.keepalive().startswith(b"event: response.in_progress\n")
    assert encoder.keepalive() == b": keepalive\n"


@pytest.mark.parametrize("style", [STYLE, PAIRS])
@pytest.mark.parametrize("tool", ["ours", "theirs", "patch"])
def test_calls_that_were_dropped_are_shown_to_nobody_whatever_dropped_them(style: ItemStyle, tool: str) -> None:
    """U13.a, P3.d: a stream that died, an output limit, a run that was stopped, arguments that are no JSON."""
    began: list[Event] = [
        BEGAN,
        TextAdded(text="I write."),
        ToolCallBegan(index=0, call_id=CALL, name=tool),
        ArgumentsAdded(index=0, text='{"a'),
    ]
    dropped: list[Event] = [
        ToolCallDropped(call_id=CALL, name=tool, bytes_received=3),
        TextAdded(text=" Not carried out."),
    ]
    refused = ToolFinished(call_id=CALL, name=tool, output="no JSON", failed=True, executed="no")
    logs: list[list[Event]] = [
        [*began, *dropped, TurnCut(turn=0, error="reset"), ended(Incomplete(reason="stream_interrupted"))],
        [*began, Answered(finish="length", model="m"), *dropped, ended(Incomplete(reason="max_output_tokens"))],
        [*began, ended(Cancelled(reason="user"))],
        [*began, Answered(finish="tool_calls", model="m"), refused, ended(Incomplete(reason="max_turns"))],
    ]
    for log in logs:
        events = play([Batch(EventNumber(0), 1000.0, log)], style)
        check_events(events)
        [message] = events[-1]["response"]["output"]
        said = "".join(event.text for event in log if isinstance(event, TextAdded))
        assert message["content"][0]["text"] == said
        assert tool not in str(events) and '{"a' not in str(events)


def test_the_older_form_has_an_incomplete_result_for_a_tool_that_was_running() -> None:
    """R1.b, P2.e: nobody knows whether it was carried out; its output is a string where that is wanted."""
    unknown = ToolFinished(call_id=CALL, name="f", output="?", failed=True, executed="unknown")
    log = [BEGAN, *called("f"), unknown, ended(Incomplete(reason="server_restart"))]
    for as_text, output in ((False, [{"type": "input_text", "text": "?"}]), (True, "?")):
        style = msgspec.structs.replace(PAIRS, text_outputs=as_text)
        response = check_response(fold(log, style=style))
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        assert response["output"][1]["output"] == output


def test_internal_tools_are_not_shown_and_the_clients_always_are() -> None:
    """C8.c: names that begin with an underscore, unless the client named them."""
    log: list[Event] = [BEGAN]
    for index, name in enumerate(("_inner", "_theirs")):
        log += [ToolCallBegan(index=index, call_id=CallId(name), name=name), ArgumentsAdded(index=index, text="{}")]
    log += [
        Answered(finish="tool_calls", model="m"),
        ToolFinished(call_id=CallId("_inner"), name="_inner", output="secret"),
        ended(RequiresAction(reason="client_tools", calls=(CallId("_theirs"),))),
    ]
    check_events(play([Batch(EventNumber(0), 1000.0, log)]))
    assert [item["name"] for item in fold(log)["output"]] == ["_theirs"]


@pytest.mark.parametrize(
    ("outcome", "status", "event"),
    [
        (Completed(), "completed", "response.completed"),
        (RequiresAction(reason="client_tools"), "completed", "response.completed"),
        (RequiresAction(reason="approval"), "incomplete", "response.incomplete"),
        (Incomplete(reason="max_turns"), "incomplete", "response.incomplete"),
        (Incomplete(reason="content_filter"), "incomplete", "response.incomplete"),
        (Failed(reason="upstream_error", message="no", status=429), "failed", "response.failed"),
        (Failed(reason="upstream_error", message="no", status=400), "failed", "response.failed"),
        (Failed(reason="internal", message="no"), "failed", "response.failed"),
        (Cancelled(reason="user"), "cancelled", "response.incomplete"),
        *(
            (Cancelled(reason=reason), "incomplete", "response.incomplete")
            for reason in CancelledReason.__args__  # type: ignore[attr-defined]
            if reason != "user"
        ),
    ],
)
def test_every_outcome_has_its_status_and_its_last_event(outcome: Outcome, status: str, event: str) -> None:
    """C18.a, C18.b: the table."""
    assert status_of(outcome) == status
    assert terminal_event(status_of(outcome)) == event
    response = check_response(fold([BEGAN, TextAdded(text="x"), ended(outcome)]))
    assert response["status"] == status
    assert (response["completed_at"] is not None) == (status == "completed")
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status in ("incomplete", "cancelled"))
    assert ("holdfast" in response) == (status != "completed")


@pytest.mark.parametrize(
    ("status", "theirs", "kind", "code"),
    [
        (429, "tokens", "rate_limit_error", "rate_limit_exceeded"),
        (429, "insufficient_quota", "rate_limit_error", "insufficient_quota"),
        (400, None, "invalid_request_error", "invalid_prompt"),
        (400, "context_length_exceeded", "invalid_request_error", "context_length_exceeded"),
        (413, None, "invalid_request_error", "invalid_prompt"),
        (422, None, "invalid_request_error", "invalid_prompt"),
        (404, None, "invalid_request_error", "model_not_found"),
        (401, "invalid_api_key", "authentication_error", "authentication_error"),
        (403, "model_not_found", "authentication_error", "model_not_found"),
        (403, None, "authentication_error", "permission_error"),
        (500, "oh_no", "server_error", "server_error"),
        (None, None, "server_error", "server_error"),
    ],
)
def test_a_failure_has_its_kind_and_the_nearest_code_that_clients_know(
    status: int | None, theirs: str | None, kind: str, code: str
) -> None:
    """C18.a, P2.f, P2.h: with the provider's own words, and its own code where clients act on it."""
    failed = ended(Failed(reason="upstream_error", message="They said no.", status=status, code=theirs))
    response = check_response(fold([BEGAN, failed]))
    assert response["error"] == {"type": kind, "code": code, "message": "They said no.", "param": None}


@pytest.mark.parametrize(
    "outcome",
    [
        *(Incomplete(reason=reason) for reason in get_args(IncompleteReason)),
        *(Cancelled(reason=reason) for reason in get_args(CancelledReason)),
        RequiresAction(reason="approval"),
    ],
)
def test_a_cut_answer_says_why_it_was_cut(outcome: Outcome) -> None:
    """C18.a, P2.h: the true reason, whatever the SDKs have a word for."""
    response = check_response(fold([BEGAN, ended(outcome)]))
    assert response["incomplete_details"] == {"reason": outcome_reason(outcome)}


def test_a_response_tells_when_it_began_and_when_it_was_done() -> None:
    """P2.a: each its own time."""
    response = fold([BEGAN, TextAdded(text="x"), ended(Completed())], created_at=990.5)
    assert (response["created_at"], response["completed_at"]) == (990, 1001)


def test_what_no_schema_knows_is_told_only_to_clients_that_asked() -> None:
    """P3.b: approvals, steering, warnings and retries, under names of our own."""
    batch = Batch(EventNumber(0), 1000.0, LOG)
    encoder = ResponseEncoder(make_envelope(own_events=True), lambda: 0.0, sse=False)
    events = decode(encoder.begin() + encoder.encode([batch]))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    own = [event for event in events if event["type"].startswith("holdfast:")]
    assert [event["type"].removeprefix("holdfast:") for event in own] == [
        "upstream.retried",
        "tool.started",
        "approval.asked",
        "run.warned",
        "message.added",
    ]
    drop = ToolCallDropped(call_id=CALL, name="f", bytes_received=3)
    encoder = ResponseEncoder(make_envelope(own_events=True), lambda: 0.0, sse=False)
    [dropped] = decode(encoder.encode([Batch(EventNumber(0), 1000.0, [drop])]))
    assert dropped["type"] == "holdfast:tool_call.dropped" and dropped["executed"] == "no"
    assert own[2]["call_id"] == CALL and own[3]["message"] == "careful"
    others = [event for event in events if event not in own]
    assert without_numbers(others) == without_numbers(play([batch]))


def test_a_log_that_cannot_be_read_further_ends_as_a_failure() -> None:
    """P3.a, P3.b: numbered on from what was sent."""
    encoder = ResponseEncoder(make_envelope(), lambda: 0.0)
    encoder.begin()
    encoder.encode([Batch(EventNumber(0), 1000.0, [BEGAN, TextAdded(text="half")])])
    end = encoder.fail(StoreUnavailableError("the disk is gone")).decode()
    assert end.startswith("event: response.failed\n") and end.endswith("data: [DONE]\n\n")
    assert "the disk is gone" in end and '"sequence_number":5' in end


def test_what_providers_want_back_is_shown_when_it_is_asked_for() -> None:
    """U3: reasoning when the client keeps the history; a call always, since no later turn is accepted without it."""
    whole = msgspec.structs.replace(STYLE, sealed=True)
    plain, sealed = fold(LOG)["output"], fold(LOG, style=whole)["output"]
    assert [("encrypted_content" in item) for item in plain] == [item.get("name") == "theirs" for item in plain]
    assert all("encrypted_content" in item for item in sealed if item["type"] == "reasoning")
