"""M1: errors and models in Anthropic's shape when the request is theirs, and how long a request is."""

from typing import Any

import anthropic
import pytest

from holdfast.config import AgentSettings, LimitSettings, ServerSettings, WireProtocol
from holdfast.testing import Fault, Reply
from tests.messages_world import COUNT, MESSAGES, THEIRS, ask, asking
from tests.serving import CHAT, KEY, Answer, serving

XKEY = {"X_Api_Key": KEY}


def check(answer: Answer, status: int, kind: str) -> str:
    """An error as Anthropic has it; its message."""
    assert answer.status == status, answer.body
    body = answer.json
    message, code = body["error"]["message"], body["error"]["details"]["error_code"]
    assert isinstance(message, str) and message and isinstance(code, str) and code
    told = {"type": kind, "message": message, "details": {"error_code": code}}
    assert body == {"type": "error", "error": told, "request_id": body["request_id"]}
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["X-Request-Id"]
    return str(message)


async def test_errors_of_the_middleware_are_anthropic_s_on_their_path() -> None:
    """M1.j: 401, 403, 404, 405, 413 and 415, before any handler has seen the request."""
    server = ServerSettings(max_body_bytes=2000)
    async with serving(key=KEY, server=server) as world:
        client = world.client
        wrong = {"Authorization": "Bearer wrong"}
        assert "x-api-key" in check(await client.post(MESSAGES, asking(), **wrong), 401, "authentication_error")
        check(await client.post(MESSAGES, asking(), Origin="http://evil.example"), 403, "permission_error")
        check(await client.get(MESSAGES), 405, "invalid_request_error")
        check(await client.get(f"{MESSAGES}/nothing"), 404, "not_found_error")
        check(await client.post(MESSAGES, asking("x" * 3000)), 413, "request_too_large")
        check(await client.post(MESSAGES, b"{", Content_Encoding="gzip"), 415, "invalid_request_error")
        check(await client.post(MESSAGES, b"not json"), 400, "invalid_request_error")
        check(await client.post(MESSAGES, b"[]"), 400, "invalid_request_error")


async def test_a_base_url_that_is_openai_s_is_told_as_what_it_is() -> None:
    """M1.j, S7.b: clients of Anthropic's add /v1 themselves; whoever has it twice is told so."""
    async with serving() as world:
        message = check(await world.client.post(f"/v1{MESSAGES}", asking(), **THEIRS), 404, "not_found_error")
        assert "base URL should be without /v1" in message
        assert "base URL" not in check(await world.client.get("/v1/files", **THEIRS), 404, "not_found_error")


@pytest.mark.parametrize("theirs", [THEIRS, XKEY])
async def test_errors_are_anthropic_s_on_any_path_when_the_request_is_theirs(theirs: dict[str, str]) -> None:
    """M1.j: by its headers; every other request gets OpenAI's envelope, as ever."""
    async with serving(key=KEY) as world:
        check(await world.client.get("/v1/files", **theirs), 404, "not_found_error")
        assert (await world.client.get("/v1/files")).error["code"] == "not_found"
        assert (await world.client.post(CHAT, {})).error["param"] == "messages"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"thread": {"type": "create"}}, "thread_unsupported_request"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread_unsupported_request"),
        ({"compaction": {"type": "summarize"}}, "unsupported_value"),
    ],
)
async def test_what_makes_another_request_of_it_is_refused(fields: dict[str, Any], code: str) -> None:
    """M1.j: passed over, the model would be asked without the conversation, or the agent do what nobody wanted."""
    async with serving() as world:
        answer = await ask(world.client, **fields)
        assert not world.provider.requests
    check(answer, 400, "invalid_request_error")
    assert answer.json["error"]["details"] == {"error_code": code}


@pytest.mark.one_server
async def test_a_limit_of_ours_is_a_rate_limit() -> None:
    """M1.j, R10.a: 429 with Retry-After."""
    limits, server = LimitSettings(max_concurrent_runs=1), ServerSettings(keepalive_seconds=0.05)
    async with serving([Reply(text="Hi", hold_after=-1)], limits=limits, server=server) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True)):
            busy = await ask(world.client)
    check(busy, 429, "rate_limit_error")
    assert busy.headers["Retry-After"]


async def test_models_are_anthropic_s_when_the_request_is_theirs() -> None:
    """M1.i: the list, and one of them; by its headers alone."""
    async with serving() as world:
        ours = (await world.client.get("/v1/models")).json
        listed = (await world.client.get("/v1/models?limit=1000", **THEIRS)).json
        one = (await world.client.get("/v1/models/scripted/m-1", **THEIRS)).json
        check(await world.client.get("/v1/models/claude", **THEIRS), 404, "not_found_error")
    assert ours["object"] == "list"
    names = [model["id"] for model in ours["data"]]
    assert listed == {
        "data": listed["data"],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }
    assert [model["id"] for model in listed["data"]] == names
    assert one == {
        "type": "model",
        "id": "scripted/m-1",
        "display_name": "scripted/m-1",
        "created_at": one["created_at"],
        "lifecycle": "active",
    }
    assert one["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("query", "page", "has_more"),
    [
        ("limit=1", ["holdfast"], True),
        ("limit=2&after_id=holdfast", ["scripted/m-1", "scripted/m-2"], False),
        ("limit=1&after_id=scripted/m-1", ["scripted/m-2"], False),
        ("after_id=scripted/m-2", [], False),
        ("limit=1&before_id=scripted/m-2", ["scripted/m-1"], True),
        ("before_id=scripted/m-2", ["holdfast", "scripted/m-1"], False),
    ],
)
async def test_models_come_in_the_pages_that_were_asked_for(query: str, page: list[str], has_more: bool) -> None:
    """M1.i: `limit`, `after_id` and `before_id`, as Anthropic's API has them."""
    async with serving(fallbacks=("scripted/m-2",)) as world:
        listed = (await world.client.get(f"/v1/models?{query}", **THEIRS)).json
        check(await world.client.get("/v1/models?after_id=claude", **THEIRS), 404, "not_found_error")
        check(await world.client.get("/v1/models?limit=0", **THEIRS), 400, "invalid_request_error")
    assert [model["id"] for model in listed["data"]] == page
    first, last = (page[0], page[-1]) if page else (None, None)
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (first, last, has_more)


async def test_the_sdk_reads_all_models_page_by_page() -> None:
    """M1.i, M6.a: each once, and then it stops."""
    async with serving(fallbacks=("scripted/m-2",)) as world:
        async with anthropic.AsyncAnthropic(base_url=world.base_url, api_key="none", max_retries=0) as sdk:
            found = [model.id async for model in sdk.models.list(limit=1)]
    assert found == ["holdfast", "scripted/m-1", "scripted/m-2"]


# M1.h: how long a request is


async def counted(content: Any = "Hello?", protocol: WireProtocol = "chat_completions", **fields: Any) -> Answer:
    async with serving(protocol=protocol) as world:
        return await world.client.post(COUNT, asking(content, **fields))


async def test_tokens_are_estimated_where_the_provider_has_no_count() -> None:
    """M1.h: instructions, tools and images included; the header says that it is an estimate."""
    answer = await counted()
    assert answer.status == 200 and set(answer.json) == {"input_tokens"}
    assert "estimate" in answer.headers["X-Holdfast-Warning"]
    short = answer.json["input_tokens"]
    assert 0 < short < 20
    longer = (await counted("Hello there, my dear old friend. " * 100)).json["input_tokens"]
    assert 600 < longer < 1200
    tool = {"name": "look", "description": "Look. " * 100, "input_schema": {"type": "object"}}
    assert (await counted(tools=[tool])).json["input_tokens"] > short + 100
    assert (await counted(system="Be kind. " * 100)).json["input_tokens"] > short + 150
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}
    assert 1000 < (await counted([image])).json["input_tokens"] < 3000


async def test_the_agent_s_own_prompt_and_tools_count_too() -> None:
    """M1.h: they are what the model is asked with."""
    body = asking()
    async with serving(agent=AgentSettings(prompt="", tools=())) as world:
        bare = (await world.client.post(COUNT, body)).json["input_tokens"]
    async with serving(agent=AgentSettings(prompt="Be kind. " * 100, tools=("files",))) as world:
        full = (await world.client.post(COUNT, body)).json["input_tokens"]
    assert full > bare + 300


async def test_what_is_stored_of_a_named_session_counts_too() -> None:
    """M1.h, M5.a: it is what the model is asked with, and what was sent in its place is not."""
    named = {"X_Holdfast_Session_Id": "s"}
    async with serving([Reply(text="Hi.")]) as world:
        await ask(world.client, "Hello there, my dear old friend. " * 100, headers=named)
        alone = (await world.client.post(COUNT, asking())).json["input_tokens"]
        full = (await world.client.post(COUNT, asking(), **named)).json["input_tokens"]
    assert full > alone + 600


async def test_a_provider_that_counts_is_asked() -> None:
    """M1.h: Anthropic's own count, of what it would be asked; nothing is run."""
    async with serving([Reply(count=1234)], protocol="anthropic_messages") as world:
        answer = await world.client.post(COUNT, asking(system="Be kind."))
        [request] = world.provider.requests
        runs = (await world.client.get("/v1/runs")).json["data"]
    assert (answer.json, runs) == ({"input_tokens": 1234}, [])
    assert "X-Holdfast-Warning" not in answer.headers
    assert request.path.endswith("/messages/count_tokens")
    assert request.body == {
        "model": "m-1",
        "system": "Be kind.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}],
    }


async def test_a_provider_that_cannot_count_now_is_not_waited_for() -> None:
    """M1.h: an estimate is better than nothing; a question about length is no reason to fail."""
    async with serving([Reply(fault=Fault("status", 404))], protocol="anthropic_messages") as world:
        answer = await world.client.post(COUNT, asking())
    assert answer.status == 200 and answer.json["input_tokens"] > 0
    assert "estimate" in answer.headers["X-Holdfast-Warning"]


async def test_a_request_that_makes_no_sense_has_no_length() -> None:
    """M1.h, M1.j: 400, as if it had been asked."""
    async with serving() as world:
        check(await world.client.post(COUNT, {"model": "x"}), 400, "invalid_request_error")
