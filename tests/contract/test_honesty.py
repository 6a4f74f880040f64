"""The honesty matrix: every fault on every protocol and surface, streamed, plain and replayed, in a real server."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.chaos.provider import RecordedRequest
from holdfast.config import WireProtocol
from holdfast.testing import FaultName, Reply, ScriptedProvider
from holdfast.upstream.transport.response import PARTING_SECONDS
from tests.honesty import CASES, DOCUMENT, MATRIX, TEXT, Case, render_document
from tests.messages_world import MESSAGES, events_of, fold, text_of
from tests.serving import CHAT, Answer, Client, running_server

PROVIDERS: dict[str, WireProtocol] = {
    "chat": "chat_completions",
    "responses": "responses",
    "messages": "anthropic_messages",
}
ANSWERS = tuple((surface, stream) for surface in ("chat", "responses", "messages") for stream in (True, False))
WAYS = (*ANSWERS, ("runs", True))
CONFIG = """
model = "chat/none"
[agent]
prompt = ""
tools = ["files"]
workspace = "{workspace}"
[stream]
retries = 2
connect_seconds = 5
first_byte_seconds = 2.5
stall_seconds = 2.5
"""
AT_ONCE = 80
CLOSING_SECONDS = PARTING_SECONDS + 2.0
"""For a busy machine; it is a millisecond or less, but a whole answer's body has a moment to end by itself."""


@dataclass
class Played:
    """What one row came to, on one protocol and surface."""

    answer: Answer
    again: Answer
    """The same, asked for once more when it was over."""
    run: dict[str, Any]
    """The same run, read back through the runs API."""
    requests: list[RecordedRequest]
    answered_at: float
    """When the client had its answer, on the clock of the requests."""


@dataclass
class Matrix:
    played: dict[tuple[str, str, str, bool], Played]
    files: list[str]
    """What is in the workspace when all is over."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    yield asyncio.run(play(tmp_path_factory.mktemp("honesty")))


async def play(folder: Path) -> Matrix:
    workspace = folder / "workspace"
    workspace.mkdir()

    def respond(request: RecordedRequest) -> Reply:
        return CASES[request.model.partition(".")[0]].reply

    async with ScriptedProvider(respond, remember=10_000) as provider:
        config = CONFIG.format(workspace=workspace)
        for name, protocol in PROVIDERS.items():
            config += f'[providers.{name}]\nprotocol = "{protocol}"\nbase_url = "{provider.url}"\napi_key = "k"\n'
        with running_server(folder, config) as server:
            async with Client(server.base_url) as client, asyncio.TaskGroup() as tasks:
                gate = asyncio.Semaphore(AT_ONCE)
                rows = [
                    (case.name, name, surface, stream)
                    for case in MATRIX
                    for name in PROVIDERS
                    for surface, stream in WAYS
                ]
                playing = {row: tasks.create_task(_ask(client, gate, row)) for row in rows}
            ended = await asyncio.to_thread(server.terminate)
            assert ended == 0, server.log
        by_model: dict[str, list[RecordedRequest]] = {}
        for request in provider.requests:
            by_model.setdefault(f"{request.protocol}/{request.model}", []).append(request)
        played = {}
        for row, task in playing.items():
            answer, again, answered_at, run = task.result()
            played[row] = Played(answer, again, run, by_model[f"{PROVIDERS[row[1]]}/{_model(row)}"], answered_at)
        await provider.closed()
        return Matrix(played, [file.name for file in workspace.iterdir()])


def _model(row: tuple[str, str, str, bool]) -> str:
    """Each row has a model of its own: what the server learns about one must not change the next."""
    case, _, surface, stream = row
    return f"{case}.{surface}.{'stream' if stream else 'plain'}"


async def _ask(
    client: Client, gate: asyncio.Semaphore, row: tuple[str, str, str, bool]
) -> tuple[Answer, Answer, float, Any]:
    _, provider, surface, stream = row
    body: dict[str, Any] = {"model": f"{provider}/{_model(row)}", "stream": stream}
    path = {"chat": CHAT, "responses": "/v1/responses", "messages": MESSAGES, "runs": "/v1/runs"}[surface]
    said = [{"role": "user", "content": "Go on."}]
    asked: dict[str, Any] = {"messages": said} if surface in ("chat", "messages") else {"input": "Go on."}
    key = {"Idempotency_Key": f"{provider}/{_model(row)}"}
    async with gate:
        answer = await client.post(path, {**body, **asked}, **key)
        answered_at = time.monotonic()
        name = answer.headers["X-Holdfast-Run-Id"]
        run = await client.get(f"/v1/runs/{name}")
        if surface in ("chat", "messages") or not stream:
            again = await client.post(path, {**body, **asked}, **key)
        elif surface == "responses":
            again = await client.get(f"/v1/responses/{answer.data[0]['response']['id']}?stream=true")
        else:
            again = await client.get(f"/v1/runs/{name}/events")
    return answer, again, answered_at, run.json


Said = tuple[Any, ...]
each = pytest.mark.parametrize("provider", PROVIDERS)


def differences(rows: Iterable[tuple[Case, Said, Said]]) -> str:
    """The rows in which something else was said than should have been, as lines to read; empty: none."""
    return "\n".join(f"{case.name}: said {said}, should be {right}" for case, said, right in rows if said != right)


@each
def test_a_chat_stream_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """R2.b, C5.a, C5.b, C5.c, C5.d, C18.a, C18.b: the right ending, text and kind; `stop` for whole answers alone."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "chat", True].answer
        last = answer.chunks[-1]
        extras = last.get("holdfast", {"outcome": "completed", "reason": None})
        kinds = [data["error"]["type"] for data in answer.data[-3:-1] if "error" in data]
        said = answer.status, answer.finish, answer.text, extras["outcome"], extras["reason"], kinds
        right = 200, case.finish, case.text, case.outcome, case.reason, [case.kind] * 2 if case.kind else []
        rows.append((case, (*said, answer.data[-1]), (*right, "[DONE]")))
    assert not differences(rows)


@each
def test_a_plain_chat_answer_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """R2.b, C6.a, C6.c, C18.a, C18.b: the same as streamed: 200 with the text, or an error with what text there was."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "chat", False].answer
        whole = {"outcome": "completed", "reason": None}
        if answer.status == 200:
            extras = answer.json.get("holdfast", whole)
            said: Said = answer.finish, answer.text, None
        else:
            extras = answer.error["holdfast"]
            said = "error", extras["partial_text"], answer.error["type"]
        said = answer.status, *said, extras["outcome"], extras["reason"], answer.headers.get("X-Holdfast-Completed")
        marked = None if case.outcome == "completed" else "false"
        right = case.status, case.finish, case.text, case.kind, case.outcome, case.reason, marked
        rows.append((case, said, right))
    assert not differences(rows)


@each
def test_a_streamed_response_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """R2.b, C18.a: completed, incomplete or failed, with the output so far and the error's kind."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "responses", True].answer
        response = answer.data[-2]["response"]
        kind = case.kind if case.outcome == "failed" else None
        right: Said = 200, case.response_status, case.text, kind, f"response.{case.response_status}", "[DONE]"
        said = answer.status, *_said_by_response(response), (response["error"] or {}).get("type"), *_types(answer)
        rows.append((case, said, right))
    assert not differences(rows)


@each
def test_a_plain_response_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """R2.b, C6.b, C6.c, C18.a: the same status and error as on chat; else 200 with the output."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "responses", False].answer
        if answer.status == 200:
            said: Said = 200, *_said_by_response(answer.json), None
        else:
            error = answer.error
            assert error["response_id"].startswith("resp_")
            said = answer.status, error["holdfast"]["outcome"], error["holdfast"]["partial_text"], error["type"]
        rows.append((case, said, (case.status, case.response_status, case.text, case.kind)))
    assert not differences(rows)


@each
def test_a_streamed_message_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """M7, M3.c, M3.d, M3.e, M3.g: `end_turn` for whole answers alone; an error event, with its type, after the text."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "messages", True].answer
        if case.stop_reason is None and not case.text:
            # Nothing had been said: its status could still say it.
            rows.append(
                (case, _refused_message(answer), (case.message_status, None, case.message_kind, "", *_why(case)))
            )
            continue
        message, error = fold(events_of(answer))
        extras = (error or message).get("holdfast", {"outcome": "completed", "reason": None})
        kind = error["type"] if error is not None else None
        said = message["stop_reason"], kind, text_of(message), extras["outcome"], extras["reason"]
        rows.append((case, said, (case.stop_reason, case.message_kind, case.text, case.outcome, case.reason)))
    assert not differences(rows)


@each
def test_a_plain_message_tells_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """M7, M3.c, M3.d, M3.f, M3.g: the same as streamed; an error has the status of its kind, and the text so far."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "messages", False].answer
        whole = {"outcome": "completed", "reason": None}
        said = _refused_message(answer)
        if answer.status == 200:
            extras = answer.json.get("holdfast", whole)
            said = 200, answer.json["stop_reason"], None, text_of(answer.json), extras["outcome"], extras["reason"]
        marked = None if case.outcome == "completed" else "false"
        right = case.message_status, case.stop_reason, case.message_kind, case.text, *_why(case), marked
        rows.append((case, (*said, answer.headers.get("X-Holdfast-Completed")), right))
    assert not differences(rows)


@each
def test_a_runs_events_tell_every_fault_as_it_is(matrix: Matrix, provider: str) -> None:
    """R1.b, R2.b: the log's own words: outcome, reason, and the text bit by bit."""
    rows = []
    for case in MATRIX:
        answer = matrix.played[case.name, provider, "runs", True].answer
        events = answer.data
        ended = events[-1]["outcome"]
        text = "".join(event["text"] for event in events if event["type"] == "text.added")
        said = answer.status, events[-1]["type"], ended["outcome"], ended.get("reason"), text
        rows.append((case, said, (200, "run.ended", case.outcome, case.reason, case.text)))
    assert not differences(rows)


@each
def test_what_is_asked_for_again_says_the_same(matrix: Matrix, provider: str) -> None:
    """R1.b, R7.a, C15.b, P9.c: replayed from the log, every surface tells every fault as it did live."""
    rows = []
    for case in MATRIX:
        for way in WAYS:
            played = matrix.played[case.name, provider, *way]
            said = (*way, played.again.status, _repeated(played.again))
            rows.append((case, said, (*way, played.answer.status, _repeated(played.answer))))
    assert not differences(rows)


def _why(case: Case) -> Said:
    return case.outcome, case.reason


def _refused_message(answer: Answer) -> Said:
    """An HTTP error in Anthropic's shape; what is none says nothing."""
    error = answer.json.get("error") if answer.status != 200 else None
    if error is None:
        return ()
    extras = error["holdfast"]
    return answer.status, None, error["type"], extras["partial_text"], extras["outcome"], extras["reason"]


def _repeated(answer: Answer) -> Any:
    """What an answer says, but for what belongs to the request: its own id, and pings, which are due by the clock."""
    if answer.data:
        return [data for data in answer.data if data == "[DONE]" or data.get("type") != "ping" or len(data) > 1]
    return {key: value for key, value in answer.json.items() if key != "request_id"}


def _said_by_response(response: dict[str, Any]) -> Said:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return response["status"], "".join(part.get("text", part.get("refusal", "")) for part in parts)


def _types(answer: Answer) -> Said:
    return answer.data[-2]["type"], answer.data[-1]


@each
def test_a_response_that_was_cut_off_says_why(matrix: Matrix, provider: str) -> None:
    """C18.a, P2.h: the true reason, streamed and plain."""
    rows = []
    for case in MATRIX:
        if case.outcome == "incomplete":
            streamed = matrix.played[case.name, provider, "responses", True].answer.data[-2]["response"]
            plain = matrix.played[case.name, provider, "responses", False].answer
            # Without a word it is an error (C6).
            told = plain.json["incomplete_details"] if plain.status == 200 else plain.error["holdfast"]
            said = streamed["incomplete_details"]["reason"], told["reason"]
            rows.append((case, said, (case.reason, case.reason)))
    assert not differences(rows)


@each
def test_the_log_says_what_the_client_was_told(matrix: Matrix, provider: str) -> None:
    """R1.b: the run, read back, has the same outcome and text on every surface, streamed or not."""
    rows = []
    for case in MATRIX:
        for surface, stream in WAYS:
            run = matrix.played[case.name, provider, surface, stream].run
            kind = (run["error"] or {}).get("type")
            said = surface, stream, run["outcome"], run["reason"], run["text"], kind
            right = case.outcome, case.reason, case.text, case.kind if case.outcome == "failed" else None
            rows.append((case, said, (surface, stream, *right)))
    assert not differences(rows)


@each
def test_the_provider_is_asked_as_often_as_it_should_be(matrix: Matrix, provider: str) -> None:
    """U8.a, U9.a, U9.b, U12.a: transient faults before the first delta are tried again; nothing else is (U9, U12)."""
    rows = []
    for case in MATRIX:
        for surface, stream in WAYS:
            requests = matrix.played[case.name, provider, surface, stream].requests
            rows.append((case, (surface, stream, len(requests)), (surface, stream, case.tries)))
    assert not differences(rows)


def test_no_half_tool_call_is_ever_carried_out(matrix: Matrix) -> None:
    """U13.a: nothing was written into the workspace."""
    assert matrix.files == []


def test_half_a_tool_call_is_shown_to_nobody(matrix: Matrix) -> None:
    """U13.a, P3.d: not a word of its arguments, on any surface, streamed or plain."""
    shown = [played.answer.body for played in matrix.played.values()]
    assert shown and not [body for body in shown if b"notes.txt" in body or b"glitters" in body]


def test_a_connection_whose_answer_never_came_whole_is_closed_before_the_client_has_its_own(matrix: Matrix) -> None:
    """U17: none lingers; those that are free for the next call are closed when the server ends (see the fixture)."""
    lingering = []
    for row, played in matrix.played.items():
        for request in played.requests:
            if request.answered_at is None:
                assert request.closed_at is not None
                if request.closed_at > played.answered_at + CLOSING_SECONDS:
                    lingering.append((row, request.closed_at - played.answered_at))
    assert not lingering


def test_every_fault_there_is_has_its_row() -> None:
    """R2.b: none is left out."""
    assert {case.fault for case in MATRIX} == set(get_args(FaultName))
    assert len(CASES) == len(MATRIX)
    assert all(case.text == TEXT for case in MATRIX if case.outcome == "completed")


def test_the_document_says_what_the_tests_say() -> None:
    """R2.b: docs/honesty.md is made from the matrix; `python -m tests.honesty` writes it anew."""
    assert DOCUMENT.read_text(encoding="utf-8") == render_document()
