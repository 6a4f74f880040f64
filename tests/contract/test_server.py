"""S: the server around the surfaces: health, models, keys, origins, headers, limits, metrics, description."""

import ast
import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import anthropic
import openai
import pytest
from openai.types import Model
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.app import ROUTES, make_app
from holdfast.api.chat_completions.encode import ChatEncoder
from holdfast.api.routing import ApiRoute
from holdfast.config import AgentSettings, LimitSettings, McpSettings, ModelSettings, ProviderSettings, ServerSettings
from holdfast.errors import StoreUnavailableError
from holdfast.runs.team import keyring
from holdfast.serving.on_uvicorn import listening
from holdfast.store.memory import MemoryStore
from holdfast.testing import Fault, Reply, ScriptedUpstream, tool_call
from tests.serving import CHAT, KEY, Answer, Client, asking, send_bytes, serving, serving_parts

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-XSS-Protection": "0",
    "Referrer-Policy": "no-referrer",
}


# S1, S2, S3


async def test_health_needs_no_key_and_tells_no_secrets() -> None:
    """S1.a, S1.b: /health, /v1/health and /health/detailed."""
    async with serving([Reply(text="Hi", hold_after=0)], key=KEY) as world, asyncio.TaskGroup() as tasks:
        going = tasks.create_task(world.client.chat())
        request = await world.provider.received()
        async with Client(world.base_url) as stranger:
            for path in ("/health", "/v1/health"):
                answer = await stranger.get(path)
                assert (answer.status, answer.json["status"]) == (200, "ok")
            detailed = await stranger.get("/health/detailed")
        request.release()
        await going
    assert detailed.status == 200
    shown = detailed.json
    assert (shown["state"], shown["active_runs"], shown["store"]["status"]) == ("running", 1, "ok")
    assert {"pid", "version", "updated_at"} <= set(shown)
    assert b"key-of" not in detailed.body


class BrokenStore(MemoryStore):
    """Full, locked or gone."""

    async def check(self) -> dict[str, Any]:
        raise StoreUnavailableError("the store is full: /var/lib/secret-place/holdfast.db cannot grow")


async def test_a_store_that_cannot_be_used_shows_in_the_detailed_health_alone() -> None:
    """S1.a, S1.b: /health says that the process is up; the detailed one says what is wrong, and no path."""
    async with serving_parts(upstream=ScriptedUpstream(), store=BrokenStore()) as client:
        assert (await client.get("/health")).status == 200
        detailed = await client.get("/health/detailed")
    assert detailed.status == 503
    assert detailed.json["state"] == "degraded"
    assert "full" in detailed.json["store"]["message"]
    assert "secret-place" not in detailed.body.decode()


async def test_the_detailed_health_does_not_say_where_a_tool_server_was_looked_for(tmp_path: Path) -> None:
    """S1.b: how an MCP server failed to start is told to its owner, not to whoever asks."""
    mcp = {"broken": McpSettings(command=(str(tmp_path / "no-such-program"), "--token", "s3cret"))}
    async with serving([], mcp=mcp, agent=AgentSettings(prompt="", tools=("mcp",))) as world:
        await world.server.service.mcp.settle(5)  # type: ignore[union-attr]
        detailed = await world.client.get("/health/detailed")
    assert detailed.json["mcp"] == {"broken": {"connected": False, "tools": 0}}
    assert str(tmp_path) not in detailed.body.decode() and b"s3cret" not in detailed.body


class SilentStore(MemoryStore):
    """Never answers."""

    async def check(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_store_that_does_not_answer_holds_up_no_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1.b: after a while it is said that it does not answer."""
    monkeypatch.setattr("holdfast.api.about.routes.CHECK_SECONDS", 0.05)
    async with serving_parts(upstream=ScriptedUpstream(), store=SilentStore()) as client:
        detailed = await client.get("/health/detailed")
    assert (detailed.status, detailed.json["status"]) == (503, "degraded")
    assert detailed.json["store"]["status"] == "unavailable" and "0.05 seconds" in detailed.json["store"]["message"]


@pytest.mark.one_server
async def test_the_detailed_health_counts_what_runs_and_what_waits_and_says_when_it_ends() -> None:
    """S1.b, S10.a: each figure its own, in the metrics too."""
    limits = LimitSettings(max_concurrent_runs=7)
    async with serving([Reply(text="One two", hold_after=0), Reply(text="x")], limits=limits) as world:
        first, second = [
            asyncio.ensure_future(world.client.chat(headers={"X-Holdfast-Session-Id": "s"})) for _ in range(2)
        ]
        request = await world.provider.received()
        supervisor = world.server.service.supervisor
        async with asyncio.timeout(5):
            while supervisor.registry.waiting < 1:
                await asyncio.sleep(0.005)
        shown = (await world.client.get("/health/detailed")).json
        figures = (await world.client.get("/metrics")).body.decode()
        assert (shown["active_runs"], shown["waiting_runs"], shown["max_concurrent_runs"]) == (1, 1, 7)
        assert (shown["pid"], shown["model"], shown["platform"]) == (os.getpid(), "scripted/m-1", "holdfast")
        assert shown["started_at"] <= shown["updated_at"] and abs(shown["updated_at"] - time.time()) < 60
        assert re.search(r"^holdfast_\w*executing\w* 1\.0$", figures, re.MULTILINE), figures
        draining = asyncio.ensure_future(supervisor.drain(5.0))
        await asyncio.sleep(0)
        assert (await world.client.get("/health/detailed")).json["state"] == "draining"
        request.release()
        await asyncio.gather(first, second, draining)


@pytest.mark.one_server
async def test_models_lists_the_agent_first_and_then_what_is_configured() -> None:
    """S2: the agent first, `root` its own name, `owned_by`, what is behind it, then the configured models."""
    providers = {"local": ProviderSettings(base_url="http://127.0.0.1:9/v1", models=("small", "large"))}
    models = {"scripted/m-3": ModelSettings(fallbacks=("local/small",))}
    async with serving(providers=providers, fallbacks=("scripted/m-2",), models=models) as world:
        listed = await world.client.get("/v1/models")
        one = await world.client.get("/v1/models/local/small")
        missing = await world.client.get("/v1/models/nobody/knows")
        sdk = [model.id async for model in await world.openai().models.list()]
    names = [Model.model_validate(model).id for model in listed.json["data"]]
    assert names == sdk == ["holdfast", "scripted/m-1", "scripted/m-2", "local/small", "local/large", "scripted/m-3"]
    agent = listed.json["data"][0]
    assert (agent["root"], agent["owned_by"], agent["answered_by"]) == ("holdfast", "holdfast", "scripted/m-1")
    assert one.json == {
        "id": "local/small",
        "object": "model",
        "created": agent["created"],
        "owned_by": "local",
        "root": "local/small",
        "parent": None,
    }
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


ENDPOINTS = """
    health health_detailed models capabilities metrics openapi chat_completions responses response response_compact
    response_delete response_cancel response_input_items conversations conversation conversation_items
"""
"""Names that clients look endpoints up by."""


async def test_capabilities_say_what_there_is_and_it_is_there() -> None:
    """S3.a, S3.b: object, auth, runtime, features, endpoints; each endpoint exists."""
    async with serving(key=KEY) as world:
        shown = (await world.client.get("/v1/capabilities")).json
    assert shown["object"] == "holdfast.api_server.capabilities"
    assert (shown["platform"], shown["model"]) == ("holdfast", "holdfast")
    assert shown["auth"] == {"type": "bearer", "required": True}
    runtime = shown["runtime"]
    assert (runtime["mode"], runtime["tool_execution"], runtime["split_runtime"]) == ("server_agent", "server", False)
    assert "API-server host" in runtime["description"]
    features = shown["features"]
    for name in (
        "chat_completions chat_completions_streaming responses_api responses_streaming reasoning_streaming "
        "run_submission run_status run_events_sse run_stop run_approval client_tools"
    ).split():
        assert features[name] is True, name
    assert features["session_continuity_header"] == "X-Holdfast-Session-Id"
    assert features["session_key_header"] == "X-Holdfast-Session-Key"
    assert shown["endpoints"]["run_status"] == {"method": "GET", "path": "/v1/runs/{run_id}"}
    assert set(ENDPOINTS.split()) <= set(shown["endpoints"])
    routes = {(route.method, route.path.replace(":path}", "}")) for route in ROUTES if isinstance(route, ApiRoute)}
    for name, endpoint in shown["endpoints"].items():
        assert (endpoint["method"], endpoint["path"]) in routes, name


async def test_capabilities_say_whether_a_key_is_needed_and_whether_pages_elsewhere_may_call() -> None:
    """S3.a, S5.a: as it is set."""
    async with serving() as world:
        shown = (await world.client.get("/v1/capabilities")).json
    assert (shown["auth"]["required"], shown["features"]["cors"]) == (False, False)
    async with serving(server=ServerSettings(cors_origins=("https://a.example",))) as world:
        assert (await world.client.get("/v1/capabilities")).json["features"]["cors"] is True


# S4


async def test_everything_but_health_and_the_page_needs_the_key() -> None:
    """S4.a: wrong, missing or malformed gets 401 with the envelope, whatever the path."""
    async with serving([Reply(text="Hi")] * 2, key=KEY) as world:
        async with Client(world.base_url) as stranger:
            paths = [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/openapi.json")]
            for method, path in [*paths, ("GET", "/v1/nothing"), ("DELETE", "/v1/runs/x"), ("OPTIONS", CHAT)]:
                answer = await stranger.send(method, path, asking() if method == "POST" else None)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), path
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            for bad in (
                "wrong",
                f"Bearer {KEY}x",
                f"Bearer {KEY[:-1]}",
                f"Basic {KEY}",
                KEY,
                "Bearer",
                "Bearer  ",
                "é",
            ):
                answer = await stranger.raw("POST", CHAT, asking(), Authorization=bad)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), bad
            for good in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "):
                assert (await stranger.get("/v1/models", Authorization=good)).status == 200, good
        assert not world.provider.requests


def test_the_key_is_compared_in_constant_time() -> None:
    """S4.b: nothing is done with it but `hmac.compare_digest`, and asking whether there is one."""
    found: list[str] = []
    tree = ast.parse(Path(keyring.__file__).read_text(encoding="utf-8"))
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "_api_key" and isinstance(node.ctx, ast.Load):
            found.append(ast.unparse(getattr(above[node], "func", above[node])))
    assert sorted(found) == [
        "bool",
        "hmac.compare_digest",
        "self._api_key and hmac.compare_digest(given, self._api_key)",
        "self._api_key or self._by_name",
    ]


async def test_without_a_key_the_server_is_open_on_loopback() -> None:
    """S4.c: no key configured; one that is sent all the same does no harm."""
    async with serving([Reply(text="Hi")] * 2) as world:
        assert (await world.client.chat()).status == 200
        assert (await world.client.chat(headers={"Authorization": "Bearer whatever"})).status == 200
        assert (await world.client.get("/v1/capabilities")).json["auth"]["required"] is False


async def test_the_pages_static_files_need_no_key_and_keep_their_own_policy() -> None:
    """S4.a, S6: only the page's own files are open; its policy is its own."""

    async def page(request: Request) -> Response:
        return Response("page", headers={"Content-Security-Policy": "default-src 'self'"})

    async with serving(key=KEY) as world:
        service = world.server.service
        app = make_app(service, page=[Route("/", page), Route("/assets/{name:path}", page)])
        async with listening(app) as base_url, Client(base_url) as stranger:
            for path in ("/", "/assets/app.js"):
                answer = await stranger.get(path)
                assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, "default-src 'self'")
                assert answer.headers["X-Frame-Options"] == "DENY"
            for method, path in (("POST", "/"), ("GET", "/v1/models"), ("GET", "/assetsx")):
                assert (await stranger.send(method, path)).status == 401, path


async def test_a_websocket_needs_the_key_and_a_good_origin_too() -> None:
    """S4.a, S5.a: refused before it is open."""
    upgrade = (
        "GET /v1/responses HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{more}\r\n"
    )
    async with serving(key=KEY) as world:
        host = world.base_url.removeprefix("http://")
        refused = await send_bytes(world.base_url, upgrade.format(host=host, more="").encode())
        more = f"Authorization: Bearer {KEY}\r\nOrigin: https://evil.example\r\n"
        foreign = await send_bytes(world.base_url, upgrade.format(host=host, more=more).encode())
    assert refused.startswith(b"HTTP/1.1 401")
    assert b"invalid_api_key" in refused
    assert foreign.startswith(b"HTTP/1.1 403")


# S5


async def test_a_foreign_page_may_not_use_the_server() -> None:
    """S5.a: CORS is off by default: 403 with the envelope, preflights too, and nothing is run."""
    async with serving() as world:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", world.base_url + ".evil.example"):
            answer = await world.client.chat(headers={"Origin": origin})
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed"), origin
            preflight = await world.client.send("OPTIONS", CHAT, Origin=origin, Access_Control_Request_Method="POST")
            assert preflight.status == 403
            assert "Access-Control-Allow-Origin" not in preflight.headers
        assert not world.provider.requests


async def test_the_servers_own_page_works() -> None:
    """S5.c: the same origin, with and without TLS in front."""
    async with serving([Reply(text="Hi")] * 3) as world:
        host = world.base_url.removeprefix("http://")
        for origin in (world.base_url, f"https://{host}"):
            assert (await world.client.chat(headers={"Origin": origin})).status == 200
        port = host.partition(":")[2]
        local = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        assert (await world.client.chat(headers=local)).status == 200


async def test_allowed_origins_get_their_headers() -> None:
    """S5.b: exact match, `Vary: Origin`, preflight 200 without a key, exposed headers; on errors too."""
    server = ServerSettings(cors_origins=("https://app.example",))
    async with serving([Reply(text="Hi")] * 2, key=KEY, server=server) as world:
        origin = {"Origin": "https://app.example"}
        async with Client(world.base_url) as stranger:
            preflight = await stranger.send("OPTIONS", CHAT, **origin, Access_Control_Request_Method="POST")
            refused = await stranger.send("GET", "/v1/models", **origin)
        for stream in (False, True):
            answer = await world.client.chat(stream=stream, headers=origin)
            assert answer.status == 200
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert answer.headers["Vary"] == "Origin"
            exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
            for name in (
                "X-Request-Id Request-Id X-Holdfast-Run-Id X-Holdfast-Session-Id Retry-After X-Should-Retry "
                "X-Holdfast-Warning"
            ).split():
                assert name in exposed
        other = await world.client.chat(headers={"Origin": "https://app.example.evil"})
    assert preflight.status == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert preflight.headers["Access-Control-Allow-Methods"] == "GET, POST, PATCH, DELETE, OPTIONS"
    assert preflight.headers["Access-Control-Max-Age"] == "600"
    allowed = preflight.headers["Access-Control-Allow-Headers"]
    for name in (
        "Authorization Content-Type Idempotency-Key Last-Event-ID X-Api-Key Anthropic-Version Anthropic-Beta "
        "X-Holdfast-Session-Id X-Holdfast-Session-Key"
    ).split():
        assert name in allowed
    assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (401, "https://app.example")
    assert other.status == 403


async def test_a_page_of_an_allowed_origin_may_use_the_official_sdks() -> None:
    """S5.b, M6.a: a preflight allows what they send about themselves, and no header that nobody knows."""
    sent = {*anthropic.Anthropic(api_key="k").default_headers, *openai.OpenAI(api_key="k").default_headers}
    about = sorted(name.lower() for name in sent if name.lower().startswith("x-stainless-"))
    names = [*about, "x-stainless-retry-count", "anthropic-dangerous-direct-browser-access", "x-unheard-of"]
    async with serving(server=ServerSettings(cors_origins=("https://app.example",))) as world:
        asked = {"Origin": "https://app.example", "Access_Control_Request_Method": "POST"}
        asked["Access_Control_Request_Headers"] = ",".join(names)
        preflight = await world.client.send("OPTIONS", "/v1/messages", **asked)
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert len(about) > 5 and [name for name in names if name not in allowed] == ["x-unheard-of"]


async def test_a_name_that_a_foreign_page_made_point_here_is_refused_without_a_key() -> None:
    """S5.a: DNS rebinding: of the same origin as the server, and still not its own page."""
    rebound = {"Host": "evil.example:8642", "Origin": "http://evil.example:8642"}
    async with serving() as world:
        for headers in (rebound, {"Host": "evil.example"}):
            answer = await world.client.chat(headers=headers)
            assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
        assert not world.provider.requests
        for host in ("127.0.0.1:8642", "localhost", "app.localhost:1", "[::1]:8642", "testserver"):
            assert (await world.client.get("/health", Host=host)).status == 200, host
    async with serving([Reply(text="Hi")], key=KEY) as world:
        assert (await world.client.chat(headers=rebound)).status == 200


async def test_names_that_were_configured_are_answered_to_without_a_key() -> None:
    """S5.a, S5.c: the server's own host and those of the allowed pages, with any port; no name that only looks so."""
    server = ServerSettings(host="Box.example", cors_origins=("https://App.example/",))
    async with serving(server=server) as world:
        for host in ("box.example", "BOX.example:8642", "app.example", "app.example:443", "10.0.0.1", "[::1]"):
            assert (await world.client.get("/health", Host=host)).status == 200, host
        for host in (
            "evil.example",
            "box.example.evil.example",
            "evil.box.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "evillocalhost.example",
            "evil.example:box.example",
        ):
            answer = await world.client.raw("GET", "/health", Host=host)
            assert (answer.status, answer.error["code"]) == (403, "host_not_allowed"), host
        for origin in ("https://app.example", "HTTPS://APP.example"):
            answer = await world.client.get("/health", Origin=origin)
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, origin)
        for origin in ("http://app.example", "https://app.example:444", "https://x.app.example"):
            assert (await world.client.get("/health", Origin=origin)).status == 403, origin


HOSTS = {
    "none": "",
    "an empty one": "Host: \r\n",
    "two": "Host: 127.0.0.1\r\nHost: evil.example\r\n",
    "two that are the same": "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n",
    "two in one": "Host: localhost, localhost\r\n",
    "a user too": "Host: x@localhost\r\n",
    "a path": "Host: localhost/x\r\n",
    "no port": "Host: localhost:x\r\n",
}


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("sent", HOSTS.values(), ids=HOSTS)
async def test_a_request_names_the_server_exactly_once(sent: str, key: str | None) -> None:
    """S5.d: missing, double or no name at all: 400 with the envelope, with a key and without, whatever is asked for."""
    own = f"Authorization: Bearer {key}\r\n" if key else ""
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    async with serving(key=key) as world:
        for path, more in (
            ("/health", "Connection: close\r\n"),
            ("/", "Connection: close\r\n"),
            ("/v1/responses", upgrade),
        ):
            got = await send_bytes(world.base_url, f"GET {path} HTTP/1.1\r\n{sent}{own}{more}\r\n".encode())
            assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), (path, got)
            assert b'"code":"invalid_host"' in got or b'"code":"host_not_allowed"' in got
        got = await send_bytes(world.base_url, f"GET /health HTTP/1.0\r\n{sent}{own}\r\n".encode())
        assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403")), got


async def test_with_a_list_of_names_a_key_does_not_open_the_others() -> None:
    """S5.d: listed, local and an address are answered to; a foreign name is not, not even with the key."""
    server = ServerSettings(allowed_hosts=("Agent.example",))
    for key in (None, KEY):
        async with serving(server=server, key=key) as world:
            for host in ("agent.example", "AGENT.example:8642", "localhost", "127.0.0.1:1", "[::1]:8642", "holdfast"):
                assert (await world.client.raw("GET", "/health", Host=host)).status == 200, host
            for host in ("evil.example", "agent.example.evil", "x.agent.example:80"):
                answer = await world.client.raw("GET", "/health", Host=host)
                assert (answer.status, answer.error["code"]) == (403, "host_not_allowed"), host


FETCHES = {
    "a script of another site": ("GET", "/v1/models", "no-cors", "script", None, 403),
    "a form of another site": ("POST", CHAT, "navigate", "document", None, 403),
    "a picture of another site": ("GET", "/", "no-cors", "image", None, 403),
    "a frame in another site": ("GET", "/", "navigate", "iframe", None, 403),
    "a link to the page": ("GET", "/", "navigate", "document", None, 200),
    "a link to the API": ("GET", "/v1/runs", "navigate", "document", None, 403),
    "a request of a page that is allowed": ("GET", "/v1/models", "cors", "empty", "https://app.example", 200),
    "a request of one that is not": ("GET", "/v1/models", "cors", "empty", "https://evil.example", 403),
}


@pytest.mark.parametrize("name", FETCHES)
async def test_what_a_browser_sends_for_another_site_is_refused(name: str) -> None:
    """S5.e, S5.c: but for allowed pages, and for whoever follows a link to the page itself."""
    method, path, mode, kind, origin, status = FETCHES[name]

    async def page(request: Request) -> Response:
        return Response("page")

    headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": kind}
    headers |= {"Origin": origin} if origin else {}
    async with serving(server=ServerSettings(cors_origins=("https://app.example",))) as world:
        app = make_app(world.server.service, page=[Route("/", page)])
        async with listening(app) as base_url, Client(base_url) as browser:
            answer = await browser.raw(method, path, asking() if method == "POST" else None, **headers)
            assert answer.status == status
            if status == 403:
                assert answer.error["code"] == "origin_not_allowed"
            for site in ("same-origin", "none", "same-site"):
                fine = await browser.raw("GET", "/v1/models", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors")
                assert fine.status == 200, site
        assert not world.provider.requests


async def test_what_is_no_preflight_is_answered_by_the_api_itself() -> None:
    """S5.b: OPTIONS is a preflight only if it says so; whatever is answered, the page may read it."""
    server = ServerSettings(cors_origins=("https://app.example",))
    async with serving(server=server) as world:
        plain = await world.client.send("OPTIONS", CHAT, Origin="https://app.example")
        asked = await world.client.post(CHAT, b"{", Origin="https://app.example", Access_Control_Request_Method="POST")
        unasked = await world.client.get("/health")
    for answer, status in ((plain, 405), (asked, 400)):
        assert answer.status == status
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert answer.headers["Vary"] == "Origin"
        assert "Access-Control-Allow-Methods" not in answer.headers
    assert "Access-Control-Allow-Origin" not in unasked.headers


@pytest.mark.parametrize("origin", ["https://app.example", "own", "own over TLS"])
async def test_a_page_that_may_use_the_server_may_open_a_websocket(origin: str) -> None:
    """S5.b, S5.c: an allowed one, and the server's own."""
    server = ServerSettings(cors_origins=("https://app.example",))
    async with serving([Reply(text="Hi.")], server=server) as world:
        own = world.base_url if origin == "own" else world.base_url.replace("http:", "https:")
        headers = {"Origin": own if origin.startswith("own") else origin}
        async with world.client.session.ws_connect("/v1/responses", headers=headers) as socket:
            await socket.send_str('{"type": "response.create", "input": "Hello?"}')
            assert (await socket.receive_json(timeout=10))["type"] == "response.created"


# S6, S7


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "a header without a name": b"GET /health HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "two lengths": b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length in words": b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: two\r\n\r\n{}",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
async def test_what_is_no_http_is_refused_in_the_same_words_as_everything_else(sent: bytes) -> None:
    """S6, S7.c: 400 with the envelope, the security headers and a request id; and the connection is closed."""
    async with serving() as world:
        head, _, body = (await send_bytes(world.base_url, sent)).partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        assert status == "HTTP/1.1 400 Bad Request"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
        assert {name: headers.get(name.lower()) for name in SECURITY} == SECURITY
        assert headers["x-request-id"].startswith("req_")
        assert (headers["content-type"], headers["content-length"]) == ("application/json", str(len(body)))
        assert headers["connection"] == "close"
        answer = Answer(400, headers, body)
        assert (answer.error["code"], answer.error["type"]) == ("malformed_http", "invalid_request_error")
        assert (await world.client.get("/health")).status == 200


@pytest.mark.parametrize("lends", [True, False], ids=["our server", "any server"])
async def test_a_stream_that_fails_inside_is_broken_off_and_not_ended(
    lends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R2.b, S7.c: nobody takes half of an answer for the whole; nothing of our inside is in it."""

    def encode(encoder: ChatEncoder, batches: object) -> bytes:
        raise ZeroDivisionError("the secret is 1234")

    monkeypatch.setattr(ChatEncoder, "encode", encode)
    async with serving([Reply(text="Hi")], lends=lends) as world:
        with pytest.raises(aiohttp.ClientError):
            async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
                assert response.status == 200
                while piece := await response.content.readany():
                    assert b"1234" not in piece
                    assert b"[DONE]" not in piece
        assert (await world.client.get("/health")).status == 200
    assert "1234" in caplog.text


async def test_every_answer_carries_the_security_headers_and_a_request_id() -> None:
    """S6: success, streams, errors of every layer."""
    async with serving([Reply(text="Hi")] * 2, key=KEY) as world:
        client = world.client
        answers = [
            await client.chat(),
            await client.chat(stream=True),
            await client.get("/health"),
            await client.get("/nothing"),
            await client.send("PUT", CHAT),
            await client.post(CHAT, b"{"),
            await client.get("/v1/models", Authorization="Bearer wrong"),
            await client.get("/v1/models", Origin="https://evil.example"),
        ]
        for good in ("my-id.1", "a:b_C-9", "x" * 128):
            assert (await client.get("/health", X_Request_Id=good)).headers["X-Request-Id"] == good
        for strange in ("a b<script>", "x" * 129, ""):
            made = (await client.get("/health", X_Request_Id=strange)).headers["X-Request-Id"]
            assert made.startswith("req_") and len(made) == len("req_") + 24
    assert [answer.status for answer in answers] == [200, 200, 200, 404, 405, 400, 401, 403]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in SECURITY} == SECURITY
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert len(set(ids)) == len(ids)


async def test_a_websocket_that_is_refused_is_told_so_with_the_same_headers() -> None:
    """S6, S7.b: what is answered to a wish for a WebSocket is an answer too, also where there is none."""
    wishes: tuple[tuple[int, str, dict[str, str]], ...] = (
        (401, "/v1/responses", {"Authorization": "Bearer wrong"}),
        (403, "/v1/responses", {"Origin": "https://evil.example"}),
        (404, "/v1/chat/completions", {}),
        (404, "/nothing", {}),
    )
    async with serving(key=KEY) as world:
        for status, path, more in wishes:
            headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": f"wish-{status}", **more}
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await world.client.session.ws_connect(path, headers=headers)
            answered = refused.value.headers
            assert refused.value.status == status
            assert answered is not None
            assert {name: answered.get(name) for name in SECURITY} == SECURITY
            assert answered.get("X-Request-Id") == f"wish-{status}"


async def test_bodies_over_the_limit_are_refused_however_they_come() -> None:
    """S7.a: 413 with the envelope: announced, chunked, and far too large; what fits is read."""
    async with serving([Reply(text="Hi")] * 2, server=ServerSettings(max_body_bytes=1000)) as world:
        for size in (900, 2000, 3_000_000):
            body = b'{"messages": [{"role": "user", "content": "' + b"x" * size + b'"}]}'

            async def in_chunks(body: bytes = body) -> AsyncGenerator[bytes]:
                for start in range(0, len(body), 100_000):
                    yield body[start : start + 100_000]

            whole = await world.client.raw("POST", CHAT, body)
            async with world.client.session.post(CHAT, data=in_chunks()) as response:
                chunked = response.status, await response.json()
            assert whole.status == chunked[0] == (200 if size == 900 else 413)
            if size != 900:
                assert whole.error["code"] == chunked[1]["error"]["code"] == "body_too_large"
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nConnection: close\r\n"
        expecting = f"{head}Expect: 100-continue\r\n\r\n"
        assert (await send_bytes(world.base_url, expecting.encode())).startswith(b"HTTP/1.1 413")
        encoded = await world.client.post(CHAT, b"\x1f\x8b", Content_Encoding="gzip")
        assert (encoded.status, encoded.error["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_not(chunked: bool) -> None:
    """S7.a: however it comes."""
    async with serving([Reply(text="Hi")], server=ServerSettings(max_body_bytes=1000)) as world:
        for size, status in ((1001, 413), (1000, 200)):
            body = b'{"messages": [{"role": "user", "content": "' + b"x" * (size - 47) + b'"}]}'
            assert len(body) == size

            async def in_pieces(body: bytes = body) -> AsyncGenerator[bytes]:
                yield body[:300]
                yield body[300:]

            data: Any = in_pieces() if chunked else body
            async with world.client.session.post(CHAT, data=data) as response:
                assert response.status == status
                if status == 413:
                    assert "1000 bytes" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(("levels", "status"), [(100, 200), (101, 400)])
async def test_a_body_may_be_nested_a_hundred_levels_deep(levels: int, status: int) -> None:
    """S7.c: and no deeper; brackets in a text do not count."""
    nested = b"[" * levels + b"]" * levels
    body = b'{"messages": [{"role": "user", "content": "' + b"[{" * 200 + b'"}], "other": ' + nested + b"}"
    async with serving([Reply(text="Hi")]) as world:
        assert (await world.client.post(CHAT, body)).status == status


async def test_a_body_that_comes_in_small_pieces_is_measured_as_a_whole() -> None:
    """S7.a: 413, although every one of them would fit."""

    async def drop_by_drop() -> AsyncGenerator[bytes]:
        yield b'{"messages": [{"role": "user", "content": "'
        for _ in range(10):
            yield b"x" * 300
            await asyncio.sleep(0.01)
        yield b'"}]}'

    async with serving([Reply(text="Hi")], server=ServerSettings(max_body_bytes=1000)) as world:
        async with world.client.session.post(CHAT, data=drop_by_drop()) as response:
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "body_too_large"
        assert not world.provider.requests


async def test_bad_methods_and_unknown_paths_get_the_envelope() -> None:
    """S7.b: 405 with what is possible, 404; a slash too many is an unknown path."""
    async with serving() as world:
        bad = await world.client.get(CHAT)
        assert (bad.status, bad.error["code"], bad.headers["Allow"]) == (405, "method_not_allowed", "POST")
        for path in ("/v2", "/v1/chat/completions/", "/v1/runs/../../etc/passwd", "/%00", "/v1/" + "x" * 5000):
            answer = await world.client.raw("GET", path)
            assert (answer.status, answer.error["code"]) == (404, "not_found"), path


@pytest.mark.parametrize("digits", ["9" * 5_000, "0" * 5_000, "0" * 5_000 + "2", "²", "-1"])
@pytest.mark.parametrize("name", ["Content-Length", "X-Stainless-Retry-Count", "Last-Event-ID", "after", "limit"])
async def test_a_number_of_any_length_is_a_number_or_a_mistake_of_the_clients(name: str, digits: str) -> None:
    """S7.c: more digits than Python reads are no error of the server's."""
    async with serving([Reply(text="Hi")]) as world:
        if name in ("after", "limit"):
            path = "/v1/runs/run_none/events" if name == "after" else "/v1/runs"
            answer = await world.client.raw("GET", f"{path}?{name}={quote(digits)}")
        elif name == "Last-Event-ID":
            answer = await world.client.raw("GET", "/v1/runs/run_none/events", Last_Event_ID=digits)
        elif name == "X-Stainless-Retry-Count":
            answer = await world.client.raw("POST", CHAT, asking(), X_Stainless_Retry_Count=digits)
            assert answer.status == 200
        else:
            answer = await world.client.raw("POST", CHAT, b"{}", Content_Length=digits)
        assert answer.status < 500, answer.body


@pytest.mark.one_server
async def test_a_client_that_leaves_while_it_sends_its_body_starts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """S7.c: half a body is no request, and no error of the server's."""
    async with serving() as world:
        host, _, port = world.base_url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n".encode() + b'{"messages": [')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await world.client.get("/v1/runs")).json["data"] == []
    assert not world.provider.requests
    assert not caplog.records


@pytest.mark.one_server
async def test_a_server_at_its_limit_says_when_to_come_back() -> None:
    """R10.a: executing runs: 429 with Retry-After; finished runs do not count."""
    limits = LimitSettings(max_concurrent_runs=1)
    async with serving([Reply(text="Hi", hold_after=0), Reply(text="Hi")], limits=limits) as world:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(world.client.chat())
            request = await world.provider.received()
            refused = await world.client.chat("Another.")
            request.release()
        await world.ended(first.result().headers["X-Holdfast-Run-Id"])
        assert (await world.client.chat("Another.")).status == 200
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["Retry-After"]) >= 1


class BuggyStore(MemoryStore):
    """Fails in a way that nobody foresaw."""

    async def check(self) -> dict[str, Any]:
        raise ZeroDivisionError("the secret is 1234")


async def test_an_exception_nobody_foresaw_shows_nothing_of_our_inside(caplog: pytest.LogCaptureFixture) -> None:
    """S7.c: 500 with the envelope and the request id; the log has the rest."""
    async with serving_parts(upstream=ScriptedUpstream(), store=BuggyStore()) as client:
        answer = await client.get("/health/detailed")
    assert answer.status == 500
    assert answer.error["code"] == "internal_error"
    assert answer.headers["X-Request-Id"] in answer.error["message"]
    assert b"1234" not in answer.body
    assert b"Traceback" not in answer.body
    assert "1234" in caplog.text


async def test_a_store_that_is_full_is_said_plainly() -> None:
    """S7.c: 503, nothing run, try later."""

    class FullStore(MemoryStore):
        async def create_run(self, *_: Any) -> None:
            raise StoreUnavailableError("the disk is full")

    upstream = ScriptedUpstream()
    async with serving_parts(upstream=upstream, store=FullStore()) as client:
        answer = await client.chat()
    assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
    assert "the disk is full" in answer.error["message"]
    assert "Retry-After" in answer.headers
    assert not upstream.calls


# S10, S11


@pytest.mark.one_server
async def test_metrics_count_what_happened() -> None:
    """S10.a: runs by outcome and reason, tokens, first token, dropped calls, store latency."""
    script = [
        Reply(text="Hi"),
        Reply(text="Hi", fault=Fault("truncated")),
        Reply(fault=Fault("status", 400)),
        Reply(text="One", fault=Fault("cut_tool_call")),
    ]
    async with serving(script) as world:
        for _ in script:
            run = (await world.client.chat()).headers["X-Holdfast-Run-Id"]
            await world.ended(run)
        answer = await world.client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = answer.body.decode().splitlines()
    for line in (
        'holdfast_runs_total{outcome="completed",reason=""} 1.0',
        'holdfast_runs_total{outcome="incomplete",reason="max_output_tokens"} 1.0',
        'holdfast_runs_total{outcome="failed",reason="upstream_error"} 1.0',
        'holdfast_runs_total{outcome="incomplete",reason="stream_interrupted"} 1.0',
        "holdfast_dropped_tool_calls_total 1.0",
        'holdfast_tokens_total{kind="output"} 14.0',
        "holdfast_time_to_first_token_seconds_count 3.0",
        "holdfast_runs_executing 0.0",
    ):
        assert line in lines, line
    for name in (
        "holdfast_client_disconnects_total holdfast_time_to_upstream_close_seconds_count "
        "holdfast_replayed_events_total holdfast_store_commit_seconds_count"
    ).split():
        assert any(line.startswith(name) for line in lines), name


@pytest.mark.one_server
async def test_metrics_count_every_call_that_was_dropped() -> None:
    """S10.a: calls, not the runs that lost them."""
    calls = (tool_call("write_file", path="a"), tool_call("write_file", path="b"))
    async with serving([Reply(calls=calls, finish="length"), Reply(text="Hi")]) as world:
        for _ in range(2):
            await world.ended((await world.client.chat()).headers["X-Holdfast-Run-Id"])
        lines = (await world.client.get("/metrics")).body.decode().splitlines()
    assert "holdfast_dropped_tool_calls_total 2.0" in lines


@pytest.mark.one_server
async def test_metrics_count_readers_that_leave_and_readers_that_come_late() -> None:
    """S10.a: disconnects, how long the upstream took to be closed, replayed events; each once, and when it happens."""
    names = ("client_disconnects_total", "time_to_upstream_close_seconds_count", "replayed_events_total")
    async with serving([Reply(text="Whole."), Reply(text="One two.", hold_after=1)]) as world:

        async def figures() -> list[float]:
            lines = (await world.client.get("/metrics")).body.decode().splitlines()
            return [
                float(line.split(" ")[1]) for name in names for line in lines if line.startswith(f"holdfast_{name} ")
            ]

        run = (await world.client.chat()).headers["X-Holdfast-Run-Id"]
        await world.ended(run)
        assert await figures() == [0, 0, 0]
        events = len((await world.client.get(f"/v1/runs/{run}/events")).data)
        assert await figures() == [0, 0, events]
        async with world.client.opened("POST", CHAT, asking(stream=True)) as response:
            await response.content.readuntil(b"One")
        await world.provider.closed()
        await world.ended(response.headers["X-Holdfast-Run-Id"])
        assert await figures() == [1, 1, events]


TAKEN = [
    ("/v1/chat/completions", "post"),
    ("/v1/responses", "post"),
    ("/v1/responses/compact", "post"),
    ("/v1/conversations", "post"),
    ("/v1/conversations/{conversation_id}", "post"),
    ("/v1/conversations/{conversation_id}/items", "post"),
    ("/v1/runs", "post"),
]
"""What reads a body, and so has to say which."""


async def test_the_description_leaves_no_route_out() -> None:
    """S11: every path and method, with a summary, its parameters and its body."""
    async with serving_parts(upstream=ScriptedUpstream()) as client:
        shown = (await client.get("/openapi.json")).json
    assert shown["openapi"].startswith("3.1")
    assert all(isinstance(route, ApiRoute) or not isinstance(route, Route) for route in ROUTES)
    for route in ROUTES:
        if not isinstance(route, ApiRoute):
            continue
        path = route.path.replace(":path}", "}")
        described = shown["paths"][path][route.method.lower()]
        assert described["summary"], route.path
        assert str(route.answers) in described["responses"]
        assert {p["name"] for p in described["parameters"] if p["in"] == "path"} == set(route.param_convertors)
        assert ("requestBody" in described) == (route.takes is not None), route.path
        assert [p["name"] for p in described["parameters"] if p["in"] == "query"] == list(route.query)
        told = {kind for answer in described["responses"].values() for kind in answer.get("content", ())}
        assert ("text/event-stream" in told) is route.streams, route.path
        assert not route.gives or route.gives in described["responses"][str(route.answers)]["content"], route.path
        assert described["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("Error")
    for path, method in TAKEN:
        assert "requestBody" in shown["paths"][path][method], path
    assert shown["components"]["schemas"]["Error"]["properties"]["error"]["required"] == [
        "message",
        "type",
        "param",
        "code",
    ]
    assert shown["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    names = [o["operationId"] for methods in shown["paths"].values() for o in methods.values()]
    assert len(names) == len(set(names))
    chat = shown["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert chat == {"$ref": "#/components/schemas/ChatBody"}
    assert "messages" in shown["components"]["schemas"]["ChatBody"]["properties"]
