"""C5, C6, C18: a failure is told with the provider's own kind, and told the same on every surface."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from holdfast.config import DialectName, ProviderSettings, ServerSettings, WireProtocol
from holdfast.outcomes import Failed, FailureKind
from holdfast.testing import Fault, Reply, tool_call
from tests.codec_world import PROTOCOLS, frames
from tests.contract.test_upstream_codecs import OPEN, SAY
from tests.serving import QUICK_STREAM, Answer, World, serving

RESPONSES = "/v1/responses"
SURFACES = ("chat", "responses")
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

KINDS = {
    # what the provider says: what a plain answer's status is, and its type
    400: (400, "invalid_request_error"),
    401: (401, "authentication_error"),
    402: (502, "authentication_error"),
    403: (403, "authentication_error"),
    404: (404, "invalid_request_error"),
    413: (413, "invalid_request_error"),
    422: (502, "invalid_request_error"),
    429: (429, "rate_limit_error"),
    500: (502, "server_error"),
    503: (502, "server_error"),
    529: (502, "server_error"),
}


async def ask(world: World, surface: str, *, stream: bool = False, **fields: Any) -> Answer:
    if surface == "chat":
        return await world.client.chat(stream=stream, **fields)
    return await world.client.post(RESPONSES, {"input": "Hello?", "stream": stream, **fields})


def streamed_error(answer: Answer) -> dict[str, Any]:
    """What a failed chat stream says: in its last chunk, and again in a frame that has nothing else."""
    *_, chunk, bare, done = answer.data
    assert done == "[DONE]"
    assert list(bare) == ["error"]
    assert bare["error"] == chunk["error"]
    assert chunk["choices"][0]["finish_reason"] == "error"
    assert chunk["holdfast"]["failed"] is True
    error: dict[str, Any] = bare["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return error


@each_protocol
@pytest.mark.parametrize("status", KINDS)
async def test_a_refusal_keeps_its_kind_on_every_surface(protocol: WireProtocol, status: int) -> None:
    """C5.a, C5.b, C5.d, C6.a, C6.b: HTTP status, type, code, message and Retry-After, streamed and plain."""
    told, kind = KINDS[status]
    refusal = Reply(fault=Fault("status", status, retry_after="7"))
    async with serving([refusal] * 4, protocol=protocol) as world:
        plain = [await ask(world, surface) for surface in SURFACES]
        streamed = streamed_error(await ask(world, "chat", stream=True))
        last = (await ask(world, "responses", stream=True)).data[-2]
        stored = await world.client.get(f"{RESPONSES}/{plain[1].error['response_id']}")
        run = (await world.client.get(f"/v1/runs/{plain[0].headers['X-Holdfast-Run-Id']}")).json
    errors = [*(answer.error for answer in plain), streamed]
    own_code = {"chat_completions": f"scripted_{status}", "responses": f"scripted_{status}"}.get(protocol)
    for error in errors:
        assert error["type"] == kind
        assert error["message"] == errors[0]["message"]
        if told == status:
            assert error["code"] == (own_code or error["holdfast"]["upstream_code"])
        else:
            assert error["code"] == "agent_incomplete"
        assert error["holdfast"]["upstream_status"] == status
        assert error["holdfast"]["retry_after_seconds"] == 7
    for answer in plain:
        assert answer.status == told
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["Retry-After"] == "7"
        assert answer.headers["X-Holdfast-Completed"] == "false"
        assert answer.headers["X-Holdfast-Run-Id"] and answer.headers["X-Holdfast-Session-Id"]
    assert (last["type"], last["response"]["error"]["type"]) == ("response.failed", kind)
    assert (stored.status, stored.json["status"]) == (200, "failed")
    assert stored.json["error"] == last["response"]["error"]
    assert (run["error"]["type"], run["error"]["message"]) == (kind, errors[0]["message"])


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_provider_that_may_be_asked_again_at_once_is_quoted_with_that(surface: str) -> None:
    """C6.a, C6.b: `Retry-After: 0` is a time like any other."""
    async with serving([Reply(fault=Fault("status", 429, retry_after="0"))] * 3) as world:
        answer = await ask(world, surface)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "0")
    assert answer.error["holdfast"]["retry_after_seconds"] == 0


def failed_response(code: str) -> bytes:
    response = {"id": "r", "status": "failed", "error": {"code": code, "message": "No."}, "output": []}
    return frames({"type": "response.failed", "response": response}, named=True)


def anthropic_error(kind: str) -> bytes:
    return frames({"type": "error", "error": {"type": kind, "message": "No."}}, named=True)


def router_error(code: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    return frames({"error": {"code": code, "message": "No."}, "choices": [choice]})


EVENTS: list[tuple[WireProtocol, bytes, int, str, int | None]] = [
    # protocol, what comes inside the stream, the plain status, its type, the status that it stands for
    ("anthropic_messages", anthropic_error("overloaded_error"), 502, "server_error", 529),
    ("anthropic_messages", anthropic_error("rate_limit_error"), 429, "rate_limit_error", 429),
    ("anthropic_messages", anthropic_error("authentication_error"), 401, "authentication_error", 401),
    ("anthropic_messages", anthropic_error("request_too_large"), 413, "invalid_request_error", 413),
    ("anthropic_messages", anthropic_error("something_new"), 502, "server_error", None),
    ("responses", failed_response("rate_limit_exceeded"), 429, "rate_limit_error", 429),
    ("responses", failed_response("invalid_prompt"), 400, "invalid_request_error", 400),
    ("responses", failed_response("invalid_image_url"), 400, "invalid_request_error", 400),
    ("responses", failed_response("server_error"), 502, "server_error", 500),
    ("chat_completions", router_error(429), 429, "rate_limit_error", 429),
    ("chat_completions", router_error("401"), 401, "authentication_error", 401),
    ("chat_completions", router_error(402), 502, "authentication_error", 402),
    ("chat_completions", router_error(503), 502, "server_error", 503),
    ("chat_completions", router_error("insufficient_quota"), 429, "rate_limit_error", 429),
]


@asynccontextmanager
async def saying(protocol: WireProtocol, body: bytes, **settings: Any) -> AsyncIterator[World]:
    """A server whose provider answers everything with these bytes of a stream."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        raw = ProviderSettings(protocol=protocol, base_url=url, api_key="k")
        async with serving(model="raw/m", providers={"raw": raw}, **settings) as world:
            yield world


@pytest.mark.parametrize(("protocol", "event", "told", "kind", "stands_for"), EVENTS)
@pytest.mark.parametrize("text", ["", "One two"])
async def test_an_error_inside_a_stream_has_the_kind_that_its_name_stands_for(
    protocol: WireProtocol, event: bytes, told: int, kind: str, stands_for: int | None, text: str
) -> None:
    """C5.d, C6.a, C6.b, C18.a: the status is long gone; before text and after it, which is kept."""
    said = [SAY[protocol](text)] if text else []
    async with saying(protocol, frames(*OPEN[protocol], *said) + event) as world:
        plain = [await ask(world, surface) for surface in SURFACES]
        streamed = await ask(world, "chat", stream=True)
        stored = await world.client.get(f"{RESPONSES}/{plain[1].error['response_id']}")
    assert streamed.text == text
    for error in (*(answer.error for answer in plain), streamed_error(streamed)):
        assert (error["type"], error["message"]) == (kind, "No.")
        assert error["holdfast"].get("upstream_status") == stands_for
        assert error["holdfast"]["partial"] is bool(text)
    for answer in plain:
        assert (answer.status, answer.headers["x-should-retry"]) == (told, "false")
        assert answer.error["holdfast"]["partial_text"] == text
    assert stored.json["status"] == "failed"
    assert [item["type"] for item in stored.json["output"]] == (["message"] if text else [])


@each_protocol
@pytest.mark.parametrize("reasoning", ["", "Hm. "])
async def test_an_answer_truncated_before_any_text_is_a_failure(protocol: WireProtocol, reasoning: str) -> None:
    """C6.c: 502, and an error in a chat stream; a response's stream has a word of its own for it."""
    cut = Reply(reasoning=reasoning, fault=Fault("truncated"))
    async with serving([cut] * 4, protocol=protocol) as world:
        plain = [await ask(world, surface) for surface in SURFACES]
        streamed = streamed_error(await ask(world, "chat", stream=True))
        last = (await ask(world, "responses", stream=True)).data[-2]
        stored = await world.client.get(f"{RESPONSES}/{plain[1].error['response_id']}")
    for error in (*(answer.error for answer in plain), streamed):
        assert (error["type"], error["code"]) == ("server_error", "agent_incomplete")
        assert error["holdfast"]["error_code"] == "output_truncated"
        assert (error["holdfast"]["failed"], error["holdfast"]["partial"]) == (True, False)
    assert [(answer.status, answer.headers["x-should-retry"]) for answer in plain] == [(502, "false")] * 2
    assert (last["type"], stored.json["status"]) == ("response.incomplete", "incomplete")


@each_protocol
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("fault", [Fault("status", 429, "0"), Fault("status", 503), Fault("reset_before_headers")])
async def test_tries_do_not_multiply(protocol: WireProtocol, surface: str, fault: Fault) -> None:
    """C6.f: the SDK would try twice more, each time with the server's three; the provider is asked three times."""
    stream = replace(QUICK_STREAM, retries=2)
    async with serving([Reply(fault=fault)] * 9, protocol=protocol, stream=stream) as world:
        sdk = world.openai(max_retries=2)
        with pytest.raises(openai.APIStatusError):
            if surface == "chat":
                await sdk.chat.completions.create(model="holdfast", messages=[{"role": "user", "content": "Hello?"}])
            else:
                await sdk.responses.create(model="holdfast", input="Hello?")
        assert len(world.provider.requests) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
async def test_official_clients_raise_the_class_of_its_kind(status: int, error: type[openai.APIStatusError]) -> None:
    """C6.a, C6.b: with the response's id in its body."""
    async with serving([Reply(fault=Fault("status", status))] * 2) as world:
        sdk = world.openai()
        with pytest.raises(error):
            await sdk.chat.completions.create(model="holdfast", messages=[{"role": "user", "content": "Hello?"}])
        with pytest.raises(error) as raised:
            await sdk.responses.create(model="holdfast", input="Hello?")
        assert isinstance(raised.value.body, dict)
        kept = await sdk.responses.retrieve(raised.value.body["response_id"])
    assert kept.status == "failed"


async def test_the_usage_of_a_failed_stream_comes_before_its_last_word() -> None:
    """C5.b, C2.d: the bare error is the last thing before `[DONE]`."""
    async with serving([Reply(text="One two", fault=Fault("error_event", 1))]) as world:
        answer = await world.client.chat(stream=True, stream_options={"include_usage": True})
    chunk, usage, bare, done = answer.data[-4:]
    assert chunk["choices"][0]["finish_reason"] == "error"
    assert (usage["choices"], set(usage["usage"]) >= {"prompt_tokens", "completion_tokens"}) == ([], True)
    assert (list(bare), bare["error"], done) == (["error"], chunk["error"], "[DONE]")


async def test_a_stopped_run_is_told_as_an_error_in_both_forms() -> None:
    """C5.b, C18.a: cancelled without text."""
    async with serving([Reply(text="One.", hold_after=-1)]) as world, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(world.client.chat(stream=True))
        await world.provider.received()
        live = await world.saved()
        await world.client.post(f"/v1/runs/{live.request.run}/stop")
        error = streamed_error(await asked)
    assert (error["code"], error["holdfast"]["reason"]) == ("agent_incomplete", "user")


@pytest.mark.parametrize(
    ("surface", "status"), [("chat", 502), ("responses", 200)], ids=["chat has no word for it", "responses has"]
)
async def test_a_plain_request_whose_run_is_stopped_is_told_so(surface: str, status: int) -> None:
    """C18.a: an error on chat, `cancelled` on responses."""
    async with serving([Reply(text="One.", hold_after=-1)]) as world, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(ask(world, surface))
        await world.provider.received()
        live = await world.saved()
        await world.client.post(f"/v1/runs/{live.request.run}/stop")
        answer = await asked
    assert answer.status == status
    assert (answer.json.get("status") == "cancelled") is (status == 200)


@pytest.mark.parametrize(("dialect", "done"), [("holdfast", True), ("hermes", True), ("nanobot", False)])
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="One two three", fault=Fault("truncated")),
        Reply(text="One two three", fault=Fault("die_after", 2)),
        Reply(text="One two three", fault=Fault("content_filter")),
        Reply(text="One two three", fault=Fault("error_event", 2)),
        Reply(fault=Fault("status", 401)),
    ],
    ids=lambda reply: reply.fault.name,
)
async def test_an_answer_that_is_not_whole_has_no_success_terminator_where_done_means_success(
    dialect: DialectName, done: bool, reply: Reply
) -> None:
    """W3.a, W3.b, W3.c: cut after text, or failed; a whole answer ends with `[DONE]` in every dialect."""
    whole = Reply(text="Hi.")
    called = Reply(calls=(tool_call("pick"),))
    tools = [{"type": "function", "function": {"name": "pick"}}]
    async with serving([reply, whole, called], server=ServerSettings(dialect=dialect)) as world:
        answer = await world.client.chat(stream=True)
        fine = [await world.client.chat(stream=True), await world.client.chat(stream=True, tools=tools)]
    assert (answer.data[-1] == "[DONE]") is done
    assert answer.finish != "stop"
    assert [(each.finish, each.data[-1]) for each in fine] == [("stop", "[DONE]"), ("tool_calls", "[DONE]")]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (None, "server_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "server_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (529, "server_error"),
    ],
)
def test_a_failure_of_an_older_log_has_its_kind_too(status: int | None, kind: FailureKind) -> None:
    """C5.d, R7.a: replayed, it is told as one of today is."""
    saved = {"outcome": "failed", "reason": "upstream_error", "message": "No.", "status": status}
    outcome = msgspec.json.decode(msgspec.json.encode(saved), type=Failed)
    assert (outcome.kind, outcome.retry_after_seconds) == (kind, None)


PROVIDER_KEY, HEADER_SECRET = "Zq7.plain_word-0123", "correct-horse-battery"


@asynccontextmanager
async def repeating(status: int) -> AsyncIterator[str]:
    """A provider that repeats what it was sent: in words where they are cut, as the error's code and as its type."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        secret = request.headers["X-Gateway-Token"]
        message = f"No {key}, no {secret}: ".ljust(1_993, "x") + f" {key}"
        error = {"message": message, "type": secret, "code": key}
        if status != 200:
            return web.json_response({"error": error}, status=status)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n")
        return stream

    app = web.Application()
    app.router.add_post("/chat/completions", refuse)
    async with TestServer(app, host="127.0.0.1") as site:
        yield f"http://127.0.0.1:{site.port}"


@pytest.mark.parametrize("status", [401, 500, 200])
async def test_a_provider_that_repeats_its_secrets_has_them_told_to_nobody(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """U9.a, C5.a, C6.a: in no answer, no event, no log and nothing that is stored."""
    caplog.set_level("DEBUG")
    async with repeating(status) as url:
        echo = ProviderSettings(base_url=url, api_key=PROVIDER_KEY, headers={"X-Gateway-Token": HEADER_SECRET})
        async with serving(model="echo/m", providers={"echo": echo}, data_dir=tmp_path) as world:
            shown = [
                (await world.client.chat()).body,
                (await world.client.chat(stream=True)).body,
                (await world.client.post("/v1/responses", {"input": "x"})).body,
                (await world.client.post("/v1/responses", {"input": "x", "stream": True})).body,
            ]
            assert all(b"No [key], no [key]" in body for body in shown)
            for run in (await world.client.get("/v1/runs")).json["data"]:
                shown += [(await world.client.get(f"/v1/runs/{run['id']}{part}")).body for part in ("", "/events")]
            shown.append((await world.client.get("/metrics")).body)
    shown += [caplog.text.encode(), *(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())]
    for body in shown:
        # No beginning of them either, as a cut would leave it.
        assert PROVIDER_KEY[:5].encode() not in body and HEADER_SECRET[:9].encode() not in body
