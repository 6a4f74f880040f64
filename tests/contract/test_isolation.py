"""What is one key's is nobody else's (S12): every route of the application is walked with every kind of key.

The routes are taken from the application itself: a new one fails the walk until it says here how it is asked for what
is somebody else's.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from starlette.routing import WebSocketRoute

from holdfast.api.app import ROUTES
from holdfast.api.routing import ApiRoute
from holdfast.config import AgentSettings
from tests.keys_world import a_team
from tests.serving import CHAT, Answer, Client, asking

SECRET = "the-word-of-alice"
"""Stands in whatever alice says, names, notes and remembers."""
SESSION, NAME, KEY, SCOPE = "shared", "talk", "twice", "memory"
"""Names that both use."""


@dataclass
class Hers:
    """What alice has."""

    run: str = ""
    response: str = ""
    conversation: str = ""
    item: str = ""
    output_item: str = ""
    waiting: str = ""
    call: str = ""
    names: list[str] = field(default_factory=list)
    """What must never be seen by anybody else."""


async def fill(alice: Client) -> Hers:
    """A session, a response, a conversation, a memory, and a run that waits for a word."""
    hers = Hers()
    said = await alice.chat(f"{SECRET} chat", headers={"X-Holdfast-Session-Id": SESSION})
    hers.run = said.headers["X-Holdfast-Run-Id"]
    assert said.headers["X-Holdfast-Session-Id"] == SESSION
    made = await alice.post("/v1/responses", {"input": f"{SECRET} response", "metadata": {"note": SECRET}})
    hers.response, hers.output_item = made.json["id"], made.json["output"][0]["id"]
    named = await alice.post("/v1/responses", {"input": f"{SECRET} named", "conversation": NAME})
    assert named.status == 200
    talk = await alice.post("/v1/conversations", {"items": [{"role": "user", "content": SECRET}]})
    hers.conversation = talk.json["id"]
    items = (await alice.get(f"/v1/conversations/{hers.conversation}/items")).json["data"]
    hers.item = items[0]["id"]
    await alice.post("/v1/sessions", {"id": f"{SECRET}-session", "title": SECRET, "metadata": {"note": SECRET}})
    kept = await alice.chat(f"{SECRET} key", headers={"Idempotency-Key": KEY})
    assert kept.status == 200
    waiting = await alice.post(
        "/v1/runs", {"input": f"remember {SECRET}", "session_id": f"{SECRET}-waiting"}, X_Holdfast_Session_Key=SCOPE
    )
    hers.waiting = waiting.json["run_id"]
    async with asyncio.timeout(10):
        while not (approvals := (await alice.get(f"/v1/runs/{hers.waiting}")).json["approvals"]):
            await asyncio.sleep(0.01)
    hers.call = approvals[0]["call_id"]
    hers.names = [SECRET, hers.run, hers.response, hers.conversation, hers.waiting]
    return hers


@dataclass(frozen=True)
class Visit:
    """How a route is asked for what is alice's, and what anybody else gets."""

    path: Callable[[Hers], str]
    body: Callable[[Hers], Any] | None = None
    status: int = 404
    headers: Callable[[Hers], Mapping[str, str]] = lambda hers: {}
    echoes: bool = False
    """What was asked for is repeated in the refusal, or an own new thing is answered: whoever asks knows it already."""


def at(path: str, **options: Any) -> Visit:
    """A path with alice's ids in the place of its parameters."""

    def fill_in(hers: Hers) -> str:
        return path.format(
            run=hers.waiting,
            ended=hers.run,
            response=hers.response,
            talk=hers.conversation,
            item=hers.item,
            session=quote(f"{SECRET}-session", safe=""),
        )

    return Visit(fill_in, **options)


def _body(**fields: Any) -> Callable[[Hers], Any]:
    return lambda hers: {name: value(hers) if callable(value) else value for name, value in fields.items()}


VISITS: Mapping[tuple[str, str], tuple[Visit, ...]] = {
    ("POST", CHAT): (
        at(
            CHAT,
            body=lambda hers: asking("What did I say?"),
            status=200,
            headers=lambda hers: {"X-Holdfast-Session-Id": SESSION, "X-Holdfast-Session-Key": SCOPE},
        ),
        at(CHAT, body=lambda hers: asking("Again"), status=200, headers=lambda hers: {"Idempotency-Key": KEY}),
        at(
            CHAT, body=lambda hers: asking("recall"), status=200, headers=lambda hers: {"X-Holdfast-Session-Key": SCOPE}
        ),
    ),
    ("POST", "/v1/responses"): (
        at("/v1/responses", body=_body(input="And?", previous_response_id=lambda hers: hers.response)),
        at("/v1/responses", body=_body(input="And?", conversation=NAME), status=200),
        at(
            "/v1/responses",
            body=_body(input="And?", conversation=lambda hers: hers.conversation),
            status=200,
            echoes=True,
        ),
        at("/v1/responses", body=_body(input=lambda hers: [{"type": "item_reference", "id": hers.item}])),
        at("/v1/responses", body=_body(input=lambda hers: [{"type": "item_reference", "id": hers.output_item}])),
        at("/v1/responses", body=_body(input="And?", session_id=SESSION), status=200),
    ),
    ("POST", "/v1/responses/compact"): (
        at("/v1/responses/compact", body=_body(model="holdfast", previous_response_id=lambda hers: hers.response)),
        at(
            "/v1/responses/compact",
            body=_body(model="holdfast", input=lambda hers: [{"type": "item_reference", "id": hers.item}]),
        ),
    ),
    ("GET", "/v1/responses/{response_id}"): (
        at("/v1/responses/{response}"),
        at("/v1/responses/{response}?stream=true"),
    ),
    ("DELETE", "/v1/responses/{response_id}"): (at("/v1/responses/{response}"),),
    ("POST", "/v1/responses/{response_id}/cancel"): (at("/v1/responses/{response}/cancel"),),
    ("GET", "/v1/responses/{response_id}/input_items"): (at("/v1/responses/{response}/input_items"),),
    ("POST", "/v1/messages"): (
        at(
            "/v1/messages",
            body=_body(model="holdfast", max_tokens=50, messages=[{"role": "user", "content": "What did I say?"}]),
            status=200,
            headers=lambda hers: {"X-Holdfast-Session-Id": SESSION},
        ),
    ),
    ("POST", "/v1/messages/count_tokens"): (
        at(
            "/v1/messages/count_tokens",
            body=_body(model="holdfast", messages=[{"role": "user", "content": "How many?"}]),
            status=200,
        ),
    ),
    ("POST", "/v1/runs"): (
        at("/v1/runs", body=_body(input="What did I say?", session_id=SESSION), status=202),
        at("/v1/runs", body=_body(input="And?", previous_response_id=lambda hers: hers.response)),
        at("/v1/runs", body=_body(input="And?", stream=True, session_id=SESSION), status=200),
    ),
    ("GET", "/v1/runs"): (
        at("/v1/runs?limit=200", status=200),
        at(f"/v1/runs?session_id={SECRET}-waiting", status=200),
        at("/v1/runs?status=waiting_approval", status=200),
        at("/v1/runs?before={run}", status=200),
    ),
    ("GET", "/v1/runs/{run_id}"): (at("/v1/runs/{run}"), at("/v1/runs/{ended}")),
    ("GET", "/v1/runs/{run_id}/events"): (
        at("/v1/runs/{run}/events"),
        at("/v1/runs/{run}/events?after=1"),
        at("/v1/runs/{ended}/events"),
        at("/v1/runs/{ended}/events?after=1"),
    ),
    ("POST", "/v1/runs/{run_id}/stop"): (at("/v1/runs/{run}/stop"), at("/v1/runs/{ended}/stop")),
    ("POST", "/v1/runs/{run_id}/approval"): (
        at("/v1/runs/{run}/approval", body=_body(approved=True)),
        at("/v1/runs/{run}/approval", body=_body(approved=True, call_id=lambda hers: hers.call)),
    ),
    ("POST", "/v1/runs/{run_id}/messages"): (at("/v1/runs/{run}/messages", body=_body(message="Listen to me.")),),
    ("POST", "/v1/runs/{run_id}/steer"): (at("/v1/runs/{run}/steer", body=_body(message="Listen to me.")),),
    ("POST", "/v1/conversations"): (
        at(
            "/v1/conversations",
            body=_body(items=lambda hers: [{"type": "item_reference", "id": hers.item}]),
        ),
    ),
    # A conversation that nobody has begun is none; bob began one of that name on his way here.
    ("GET", "/v1/conversations/{conversation_id}"): (at("/v1/conversations/{talk}", status=200, echoes=True),),
    ("POST", "/v1/conversations/{conversation_id}"): (
        at("/v1/conversations/{talk}", body=_body(metadata={"mine": "now"}), status=200, echoes=True),
    ),
    ("GET", "/v1/conversations/{conversation_id}/items"): (at("/v1/conversations/{talk}/items", status=200),),
    ("POST", "/v1/conversations/{conversation_id}/items"): (
        at(
            "/v1/conversations/{talk}/items",
            body=_body(items=lambda hers: [{"type": "item_reference", "id": hers.item}]),
        ),
    ),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): (at("/v1/conversations/{talk}/items/{item}"),),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): (at("/v1/conversations/{talk}/items/{item}"),),
    ("DELETE", "/v1/conversations/{conversation_id}"): (at("/v1/conversations/{talk}", status=200, echoes=True),),
    ("GET", "/v1/sessions"): (
        at("/v1/sessions?limit=200", status=200),
        at(f"/v1/sessions?search={SECRET}", status=200),
    ),
    ("POST", "/v1/sessions"): (at("/v1/sessions", body=_body(id=SESSION + "-2"), status=201),),
    ("GET", "/v1/sessions/{session_id:path}/messages"): (at("/v1/sessions/{session}/messages"),),
    ("POST", "/v1/sessions/{session_id:path}/fork"): (at("/v1/sessions/{session}/fork", body=_body()),),
    ("GET", "/v1/sessions/{session_id:path}"): (
        at("/v1/sessions/{session}"),
        at("/v1/sessions/alice%1F{session}"),
    ),
    ("PATCH", "/v1/sessions/{session_id:path}"): (at("/v1/sessions/{session}", body=_body(title="mine now")),),
    ("DELETE", "/v1/sessions/{session_id:path}"): (
        at("/v1/sessions/{session}"),
        at("/v1/sessions/alice%1F{session}"),
    ),
    ("POST", "/v1/keys"): (at("/v1/keys", body=_body(name="mallory", role="admin"), status=403),),
    ("GET", "/v1/keys"): (at("/v1/keys", status=403),),
    ("DELETE", "/v1/keys/{name}"): (at("/v1/keys/alice", status=403),),
    ("GET", "/v1/me"): (at("/v1/me", status=200),),
    ("GET", "/v1/usage"): (at("/v1/usage", status=200), at("/v1/usage?key=alice"), at("/v1/usage?key=admin")),
    ("GET", "/v1/audit"): (at("/v1/audit", status=403),),
    ("HEAD", "/"): (at("/", status=200),),
    ("GET", "/health"): (at("/health", status=200),),
    ("GET", "/v1/health"): (at("/v1/health", status=200),),
    ("GET", "/health/detailed"): (at("/health/detailed", status=200),),
    ("GET", "/v1/models"): (at("/v1/models", status=200),),
    ("GET", "/v1/models/{model:path}"): (at("/v1/models/holdfast", status=200),),
    ("GET", "/v1/capabilities"): (at("/v1/capabilities", status=200),),
    ("GET", "/metrics"): (at("/metrics", status=403),),
    ("GET", "/openapi.json"): (at("/openapi.json", status=200),),
}
OPEN = {("HEAD", "/"), ("GET", "/health"), ("GET", "/v1/health"), ("GET", "/health/detailed")}
LOOKING = ("GET", "HEAD")


async def test_every_route_says_how_it_is_asked_for_what_is_somebody_elses() -> None:
    """S12.f: a route that nobody has thought of fails here."""
    routes = {(route.method, route.path) for route in ROUTES if isinstance(route, ApiRoute)}
    assert routes == set(VISITS)
    others = [route for route in ROUTES if not isinstance(route, ApiRoute)]
    assert [(type(route), route.path) for route in others] == [(WebSocketRoute, "/v1/responses")]  # type: ignore[attr-defined]


async def send(client: Client, method: str, visit: Visit, hers: Hers) -> Answer:
    body = None if visit.body is None else visit.body(hers)
    headers = {name.replace("-", "_"): value for name, value in visit.headers(hers).items()}
    # As it is written: an escaped sign stays one.
    return await client.raw(method, visit.path(hers), body, **headers)


async def picture(alice: Client, hers: Hers) -> Any:
    """Everything of alice's that somebody could have changed."""
    paths = [
        f"/v1/runs/{hers.waiting}",
        f"/v1/responses/{hers.response}",
        f"/v1/conversations/{hers.conversation}",
        f"/v1/conversations/{hers.conversation}/items",
        f"/v1/sessions/{SECRET}-session",
        "/v1/sessions",
        "/v1/runs",
        f"/v1/sessions/{SESSION}/messages",
    ]
    answers = [await alice.get(path) for path in paths]
    assert {answer.status for answer in answers} == {200}
    return [answer.json for answer in answers]


async def test_another_key_finds_nothing_on_any_route() -> None:
    """S12.f: not in lists, by id, by reference, by header, by name; and nothing of it is changed by trying."""
    async with a_team() as team:
        hers = await fill(team.alice)
        before = await picture(team.alice, hers)
        wrong = []
        for (method, path), visits in VISITS.items():
            for visit in visits:
                answer = await send(team.bob, method, visit, hers)
                told = answer.body.decode(errors="replace") + str(dict(answer.headers))
                known = {visit.path(hers), str(visit.body and visit.body(hers))}
                seen = [name for name in hers.names if name in told and not any(name in asked for asked in known)]
                if not visit.echoes and answer.status != 404 and SECRET in told:
                    seen.append(SECRET)
                if answer.status != visit.status or seen:
                    wrong.append((method, path, answer.status, seen, told[:300]))
        assert wrong == []
        assert await picture(team.alice, hers) == before
        ended = await team.alice.post(f"/v1/runs/{hers.waiting}/approval", {"approved": True})
        assert ended.status == 200


@pytest.mark.parametrize("who", ["nobody", "wrong", "malformed"])
async def test_without_a_good_key_nothing_is_answered(who: str) -> None:
    """S4.a, S12.f: on every route but health and the page."""
    async with a_team() as team:
        hers = await fill(team.alice)
        client = await team.client({"nobody": None, "wrong": "hf_wrong", "malformed": None}[who])
        extra = {"Authorization": "Basic YTpi"} if who == "malformed" else {}
        for (method, path), visits in VISITS.items():
            for visit in visits:
                headers = {name.replace("-", "_"): value for name, value in visit.headers(hers).items()}
                body = None if visit.body is None else visit.body(hers)
                answer = await client.raw(method, visit.path(hers), body, **headers, **extra)
                assert answer.status == (visit.status if (method, path) in OPEN else 401), path
                assert SECRET not in answer.body.decode()


async def test_a_viewer_changes_nothing_and_sees_nothing_of_others() -> None:
    """S12.e: everything that writes is 403, a WebSocket too; what it reads is its own."""
    async with a_team() as team:
        hers = await fill(team.alice)
        for (method, path), visits in VISITS.items():
            for visit in visits:
                answer = await send(team.viewer, method, visit, hers)
                if method not in LOOKING:
                    assert answer.status == 403 and b"viewer_only_reads" in answer.body, path
                else:
                    assert answer.status in (200, 403, 404), path
                    assert answer.status == 404 or SECRET not in answer.body.decode(), path
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            headers = {"Authorization": f"Bearer {team.viewer.key}"}
            await team.viewer.session.ws_connect("/v1/responses", headers=headers)
        assert refused.value.status == 403


async def test_a_viewer_reads_its_own() -> None:
    """S12.e: a name that had a user's key before still has what it had."""
    async with a_team() as team:
        said = await team.bob.chat("Mine.", headers={"X-Holdfast-Session-Id": "kept"})
        await team.revoke("bob")
        bob = await team.make_key("bob", role="viewer")
        assert (await bob.get("/v1/sessions/kept")).status == 200
        run = said.headers["X-Holdfast-Run-Id"]
        assert (await bob.get(f"/v1/runs/{run}")).json["text"] == said.text
        assert (await bob.send("DELETE", "/v1/sessions/kept")).status == 403


async def test_names_that_two_keys_use_never_meet() -> None:
    """S12.g: sessions, conversations, memories, idempotency keys and derived sessions of one name are two."""
    async with a_team() as team:
        for client, word in ((team.alice, "apple"), (team.bob, "banana"), (team.admin, "cherry")):
            named = {"X-Holdfast-Session-Id": SESSION}
            assert (await client.chat(f"{word} one", headers=named)).status == 200
            await client.post("/v1/responses", {"input": f"{word} two", "conversation": NAME})
            first = await client.chat("the same", headers={"Idempotency-Key": KEY})
            assert "Idempotency-Replayed" not in first.headers
            again = await client.chat("the same", headers={"Idempotency-Key": KEY})
            assert again.headers["Idempotency-Replayed"] == "true"
            assert again.headers["X-Holdfast-Run-Id"] == first.headers["X-Holdfast-Run-Id"]
        words = {"apple", "banana", "cherry"}
        for client, word in ((team.alice, "apple"), (team.bob, "banana"), (team.admin, "cherry")):
            session = await client.chat("What?", headers={"X-Holdfast-Session-Id": SESSION})
            talk = await client.post("/v1/responses", {"input": "What?", "conversation": NAME})
            said = (await client.get(f"/v1/sessions/{SESSION}/messages")).body
            for told in (session.body, talk.body, said):
                assert [each for each in words if each in told.decode()] == [word]


async def test_memories_of_one_name_are_two() -> None:
    """S12.g: the memory tools of a run see what its own key has remembered."""
    memory = AgentSettings(prompt="", tools=("memory",))
    async with a_team(agent=memory) as team:
        for headers in ({"X-Holdfast-Session-Key": SCOPE}, {"X-Holdfast-Session-Id": SESSION}):
            await team.alice.chat("remember apples", headers=headers)
            await team.bob.chat("remember bananas", headers=headers)
            for client, word in ((team.alice, "apples"), (team.bob, "bananas")):
                told = await client.chat("recall", headers=headers)
                shown = [each for each in ("apples", "bananas") if f"- {each}" in told.text]
                assert shown == [word]
            assert "Nothing is remembered" in (await team.admin.chat("recall", headers=headers)).text


async def test_an_sdks_second_try_finds_its_own_run_alone() -> None:
    """S12.g: the same body with a retry count attaches to the caller's run, and to nobody else's."""
    async with a_team() as team:
        async with team.alice.opened("POST", CHAT, asking("hold", stream=True)) as first:
            run = first.headers["X-Holdfast-Run-Id"]
            async with team.bob.opened("POST", CHAT, asking("hold", stream=True), X_Stainless_Retry_Count="1") as other:
                assert other.headers["X-Holdfast-Run-Id"] != run
            async with team.alice.opened("POST", CHAT, asking("hold", stream=True), X_Stainless_Retry_Count="1") as own:
                assert own.headers["X-Holdfast-Run-Id"] == run


async def test_a_socket_continues_from_its_own_responses_alone() -> None:
    """S12.f: the WebSocket knows whose it is."""
    async with a_team() as team:
        hers = await fill(team.alice)
        headers = {"Authorization": f"Bearer {team.bob.key}"}
        async with team.bob.session.ws_connect("/v1/responses", headers=headers) as socket:
            for fields in (
                {"previous_response_id": hers.response},
                {"input": [{"type": "item_reference", "id": hers.item}]},
            ):
                body = {"type": "response.create", "input": "And?", "store": True, **fields}
                await socket.send_str(msgspec.json.encode(body).decode())
                event = await socket.receive_json(timeout=10)
                assert (event["type"], event["status"]) == ("error", 404)


async def test_an_admin_sees_all() -> None:
    """S12.h: lists have everybody's, with whose they are; runs, responses and sessions are found and stopped."""
    async with a_team() as team:
        hers = await fill(team.alice)
        boss = await team.make_key("boss", role="admin")
        for client in (team.admin, boss):
            runs = (await client.get("/v1/runs?limit=200")).json["data"]
            mine = next(run for run in runs if run["id"] == hers.waiting)
            assert (mine["owner"], mine["key"]) == ("alice", "alice")
            assert (await client.get(f"/v1/runs/{hers.run}")).json["owner"] == "alice"
            assert (await client.get(f"/v1/responses/{hers.response}")).status == 200
            sessions = (await client.get("/v1/sessions?limit=200")).json["data"]
            theirs = {session["title"]: session for session in sessions if session.get("owner") == "alice"}
            session = quote(theirs[SECRET]["id"], safe="")
            assert (await client.raw("GET", f"/v1/sessions/{session}")).json["title"] == SECRET
        assert (await boss.post(f"/v1/runs/{hers.waiting}/stop")).json["stopped"] is True
        # What an admin adds to a session of alice's is hers to see.
        added = await boss.post("/v1/responses", {"input": "From the boss.", "previous_response_id": hers.response})
        assert added.status == 200
        assert (await team.alice.get(f"/v1/responses/{added.json['id']}")).status == 200


async def test_with_the_admins_key_alone_nothing_has_an_owner() -> None:
    """S12.a: what is shown is what was shown before there were keys."""
    async with a_team() as team:
        said = await team.admin.chat(headers={"X-Holdfast-Session-Id": SESSION})
        run = (await team.admin.get(f"/v1/runs/{said.headers['X-Holdfast-Run-Id']}")).json
        session = (await team.admin.get(f"/v1/sessions/{SESSION}")).json
        assert {"owner", "key"} & (set(run) | set(session)) == set()
