"""The client: logs over lost connections, events that never end, errors by name."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.server_connection import parse_server_url
from holdfast.client import Entry, HoldfastClient, NewRun
from holdfast.errors import ClientError, ConfigError, ServerRefusedError, ServerUnreachableError
from holdfast.events import RunEnded, TextAdded
from holdfast.ids import EventNumber
from holdfast.outcomes import Completed
from holdfast.testing import Reply
from tests.serving import KEY, serving


@asynccontextmanager
async def cutting(target: str, after_bytes: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy that resets every connection after so many bytes of answers; and how many connections it has had."""
    host, _, port = target.removeprefix("http://").partition(":")
    connections: list[int] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))

        async def send() -> None:
            while data := await reader.read(65536):
                upstream_writer.write(data)
                await upstream_writer.drain()

        sending = asyncio.ensure_future(send())
        try:
            left = after_bytes
            while left > 0 and (data := await upstream_reader.read(left)):
                left -= len(data)
                writer.write(data)
                await writer.drain()
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            upstream_writer.close()
            writer.transport.abort()

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", connections


async def read_all(client: HoldfastClient, run: str, after: int = -1) -> list[Entry]:
    async with asyncio.timeout(20), aclosing(client.events(run, EventNumber(after))) as entries:
        return [entry async for entry in entries]


async def test_a_log_is_read_on_over_any_number_of_lost_connections_and_nothing_comes_twice() -> None:
    pieces = [f"{number} " for number in range(100)]
    async with serving([Reply(text=tuple(pieces))], key=KEY) as world:
        async with HoldfastClient(world.base_url, KEY) as direct:
            started = await direct.start_run(NewRun(input="count"))
            whole = await read_all(direct, started.run_id)
            assert [entry.number for entry in whole] == list(range(len(whole)))
            assert isinstance(whole[-1].event, RunEnded)
            assert whole[-1].event.outcome == Completed()
            text = "".join(entry.event.text for entry in whole if isinstance(entry.event, TextAdded))
            assert text == "".join(pieces)
            assert await read_all(direct, started.run_id, 10) == whole[11:]
        async with cutting(world.base_url, 3_000) as (url, connections):
            async with HoldfastClient(url, KEY) as client:
                assert await read_all(client, started.run_id) == whole
        assert len(connections) > 3


async def test_a_server_that_stays_away_is_told_once_and_given_up_by_name() -> None:
    lost: list[str] = []
    async with HoldfastClient("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnreachableError, match="may still go on"):
            async with aclosing(client.events("run_1", patience_seconds=0.2, on_lost=lost.append)) as entries:
                async for _ in entries:
                    raise AssertionError("there is nobody there")
    assert len(lost) == 1


@asynccontextmanager
async def losing_the_first_answer(target: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that hands on every request, and resets the connection instead of giving the first answer back."""
    host, _, port = target.removeprefix("http://").partition(":")
    lost: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        try:
            while data := await reader.read(65536):
                upstream_writer.write(data)
                answer = await upstream_reader.read(65536)
                if not lost:
                    lost.append(answer)
                    return
                writer.write(answer)
        finally:
            upstream_writer.close()
            writer.transport.abort()

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", lost


async def test_a_run_whose_start_was_not_heard_of_is_not_started_twice() -> None:
    """J3: the server has begun it, and the answer that says so is lost on the way."""
    async with serving([Reply(text="One."), Reply(text="Two.")], key=KEY) as world:
        async with losing_the_first_answer(world.base_url) as (url, lost), HoldfastClient(url, KEY) as client:
            started = await client.start_run(NewRun(input="1?"))
        async with HoldfastClient(world.base_url, KEY) as direct:
            await read_all(direct, started.run_id)
            assert [run.id for run in await direct.list_runs()] == [started.run_id]
    assert started.run_id.encode() in lost[0], "it is the one that was begun first"
    assert len(world.provider.requests) == 1


@asynccontextmanager
async def never_ending(line: bytes) -> AsyncIterator[str]:
    """A server whose only answer is an event of one line after another, for as long as somebody reads."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        try:
            while True:
                writer.write(line)
                await writer.drain()
        except ConnectionError:
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("line", [b"data: 12345678\n", b"12345678"])
async def test_an_event_that_never_ends_does_not_fill_the_memory(line: bytes) -> None:
    async with never_ending(line) as url, HoldfastClient(url, max_event_bytes=100_000) as client:
        with pytest.raises(ClientError, match="too large"):
            await read_all(client, "run_1")


async def test_what_the_server_refuses_keeps_its_status_and_words() -> None:
    async with serving(key=KEY) as world:
        async with HoldfastClient(world.base_url, KEY) as client:
            with pytest.raises(ServerRefusedError, match="There is no run run_x") as refused:
                await client.get_run("run_x")
            assert (refused.value.status, refused.value.code) == (404, "run_not_found")
            with pytest.raises(ServerRefusedError, match="There is no run run_x"):
                await client.answer_approval("run_x", "call", True)
            with pytest.raises(ServerRefusedError, match="There is no session a/b"):
                await client.get_session("a/b")
        async with HoldfastClient(world.base_url, "wrong") as stranger:
            assert (await stranger.health()).status == "ok"
            with pytest.raises(ServerRefusedError, match="Set HOLDFAST_API_KEY"):
                await stranger.models()


async def test_runs_sessions_and_models_come_back_as_values() -> None:
    async with serving([Reply(text="One."), Reply(text="Two.")], key=KEY) as world:
        async with HoldfastClient(world.base_url, KEY) as client:
            first = await client.start_run(NewRun(input="1?", instructions="Be brief."))
            await read_all(client, first.run_id)
            second = await client.start_run(NewRun(input="2?", session_id=first.session_id))
            await read_all(client, second.run_id)
            runs = await client.list_runs(session=first.session_id)
            assert [(run.id, run.text, run.outcome) for run in runs] == [
                (second.run_id, "Two.", "completed"),
                (first.run_id, "One.", "completed"),
            ]
            messages = await client.messages(first.session_id)
            assert [message.text for message in messages] == ["1?", "One.", "2?", "Two."]
            copy = await client.fork_session(first.session_id, messages[1].id)
            assert [message.text for message in await client.messages(copy.id)] == ["1?", "One."]
            assert {session.id for session in await client.list_sessions()} == {first.session_id, copy.id}
            assert (await client.models())[0].answered_by == "scripted/m-1"
            stopped = await client.stop(first.run_id)
            assert (stopped.stopped, stopped.text, stopped.outcome) == (False, "One.", "completed")
            with pytest.raises(ServerRefusedError, match="has ended"):
                await client.steer(first.run_id, "more")


@asynccontextmanager
async def answering(*answers: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives one answer after the other, the last for ever (None: it is silent); and what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            asked.append(head + (await reader.readexactly(int(length[1])) if length else b""))
            said = answers[min(len(asked), len(answers)) - 1]
            if said is None:
                await reader.read()
            else:
                writer.write(said)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", asked


def http(status: int, body: bytes = b"", *headers: bytes) -> bytes:
    head = b"\r\n".join(
        (b"HTTP/1.1 %d Said" % status, b"Content-Length: %d" % len(body), b"Connection: close", *headers)
    )
    return head + b"\r\n\r\n" + body


def log(*frames: bytes) -> bytes:
    """An answer that is cut off after some events of a log."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + b"".join(frames)


def event(number: int, kind: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), data)


TEXT = [event(number, "text.added", text=str(number), at=float(number)) for number in range(3)]
END = event(3, "run.ended", outcome={"outcome": "completed"}, usage={})


async def test_a_stream_that_ends_because_its_server_hands_the_run_over_is_told_as_that() -> None:
    """R16.b, R16.c: nothing broke, and the log is read on."""
    lost: list[str] = []
    handed_over = event(1, "run.handed_over")
    async with answering(log(TEXT[0], handed_over), log(TEXT[2], END)) as (url, _):
        async with HoldfastClient(url, KEY) as client, asyncio.timeout(10):
            async with aclosing(client.events("run_1", on_lost=lost.append)) as entries:
                assert [entry.number async for entry in entries] == [0, 1, 2, 3]
    assert lost == [f"{url} is going down."]


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_server_that_is_just_starting_or_stopping_is_waited_for(status: int) -> None:
    """R7.a: the log is read on when it is there again, from the event after the last one that came."""
    lost: list[str] = []
    refusal = http(status, b"starting")
    async with answering(refusal, log(*TEXT[:2]), refusal, refusal, log(TEXT[2], END)) as (url, asked):
        async with HoldfastClient(f"{url}/", KEY) as client, asyncio.timeout(10):
            async with aclosing(client.events("run/1", on_lost=lost.append)) as entries:
                got = [(entry.number, entry.at) async for entry in entries]
    assert got == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 0.0)]
    assert lost == [f"{url} answers with HTTP {status}.", f"{url} ended the stream early."], "told once each time"
    assert [head.split(b" ")[1] for head in asked] == [b"/v1/runs/run%2F1/events"] * 5
    assert [re.findall(rb"Last-Event-ID: (\d+)", head) for head in asked] == [[], [], [b"1"], [b"1"], [b"1"]]
    assert all(f"Authorization: Bearer {KEY}".encode() in head for head in asked)


@pytest.mark.parametrize("status", [302, 400, 401, 404, 410, 500])
async def test_what_the_server_refuses_for_good_is_not_asked_for_again(status: int) -> None:
    async with (
        answering(http(status, b"<html>", b"Location: /elsewhere")) as (url, asked),
        HoldfastClient(url) as client,
    ):
        with pytest.raises(ServerRefusedError, match=f"answers with HTTP {status}") as refused:
            await read_all(client, "run_1")
    assert refused.value.status == status
    assert len(asked) == 1


async def test_a_server_that_answers_and_then_goes_again_is_each_time_given_its_whole_patience() -> None:
    """R7.a: how long it may be away counts from when it was last heard of."""
    away = [http(503)] * 3
    answers = (*away, log(TEXT[0]), *away, log(TEXT[1]), *away, log(TEXT[2], END))
    async with answering(*answers) as (url, _), HoldfastClient(url) as client, asyncio.timeout(15):
        async with aclosing(client.events("run_1", patience_seconds=1.5)) as entries:
            assert [entry.number async for entry in entries] == [0, 1, 2, 3]


async def test_a_log_that_the_server_cannot_read_on_is_asked_for_again() -> None:
    """R6.b: an end that is not in the log is not the run's."""
    trouble = b"event: error\ndata: " + END.split(b"data: ")[1]
    async with answering(log(TEXT[0], trouble), log(*TEXT[1:], END)) as (url, asked), HoldfastClient(url) as client:
        assert [entry.number for entry in await read_all(client, "run_1")] == [0, 1, 2, 3]
    assert len(asked) == 2


async def test_events_that_are_newer_than_the_client_are_passed_over_but_an_end_is_not() -> None:
    """R2.b: how a run has ended is never guessed."""
    newer = event(1, "thought.weighed", grams=3)
    async with answering(log(TEXT[0], newer, TEXT[2], END)) as (url, _), HoldfastClient(url) as client:
        assert [entry.number for entry in await read_all(client, "run_1")] == [0, 2, 3]
    unknown = event(1, "run.ended", outcome={"outcome": "postponed"}, usage={})
    async with answering(log(TEXT[0], unknown)) as (url, asked), HoldfastClient(url) as client:
        with pytest.raises(ClientError, match="ended in a way that this client does not know"):
            await read_all(client, "run_1")
        assert len(asked) == 1
    async with answering(log(b"id: 1\nevent: text.added\ndata: {\n\n")) as (url, _), HoldfastClient(url) as client:
        with pytest.raises(ClientError, match="not JSON"):
            await read_all(client, "run_1")


async def test_a_stream_that_has_fallen_silent_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7.a: a connection that died without a word is not waited on for ever."""
    monkeypatch.setattr("holdfast.client.http.SILENCE_SECONDS", 0.1)
    lost: list[str] = []
    async with answering(None, log(*TEXT, END)) as (url, _), HoldfastClient(url) as client, asyncio.timeout(10):
        async with aclosing(client.events("run_1", on_lost=lost.append)) as entries:
            assert len([entry async for entry in entries]) == 4
    assert lost == [f"{url} does not answer."]


STOPPED = {
    "run_id": "run_1",
    "stopped": True,
    "status": "cancelled",
    "outcome": "cancelled",
    "reason": "user",
    "message": None,
    "text": "so far",
    "usage": {"input_tokens": 1},
}


async def test_a_stop_whose_answer_was_lost_is_asked_for_again_but_not_for_ever() -> None:
    """R5.b: it answers with what was saved."""
    async with answering(b"", b"", http(200, msgspec.json.encode(STOPPED))) as (url, asked):
        async with HoldfastClient(url) as client:
            assert (await client.stop("run_1")).text == "so far"
        assert len(asked) == 3
    async with answering(b"") as (url, asked), HoldfastClient(url) as client:
        with pytest.raises(ServerUnreachableError, match="cannot be reached"):
            await client.stop("run_1")
        assert len(asked) == 3


async def test_a_start_that_is_repeated_has_the_same_key_and_the_next_one_another() -> None:
    """J3: the Idempotency-Key is of one start, however often it is tried."""
    started = http(202, msgspec.json.encode({"run_id": "r", "session_id": "s", "status": "queued", "model": "m"}))
    async with answering(b"", started) as (url, asked), HoldfastClient(url) as client:
        await client.start_run(NewRun(input="1?", on_disconnect=30))
        await client.start_run(NewRun(input="1?"))
    keys = [re.findall(rb"Idempotency-Key: (\w+)", head) for head in asked]
    assert keys[0] == keys[1] != keys[2]
    assert all(len(key[0]) == 32 for key in keys)
    assert all(b"Content-Type: application/json\r\n" in head for head in asked)
    assert asked[1].endswith(b'\r\n\r\n{"input":"1?","on_disconnect":30}')


async def test_what_must_not_be_done_twice_is_tried_once() -> None:
    """R13.a: a message that was perhaps heard is not said again."""
    async with answering(b"") as (url, asked), HoldfastClient(url) as client:
        with pytest.raises(ServerUnreachableError):
            await client.steer("run_1", "more")
        with pytest.raises(ServerUnreachableError):
            await client.answer_approval("run_1", "call_1", True)
    assert [request.split(b"\r\n\r\n")[1] for request in asked] == [
        b'{"content":"more"}',
        b'{"approved":true,"call_id":"call_1"}',
    ]


async def test_a_server_that_is_not_there_is_told_with_how_to_start_one_and_one_of_somebody_else_is_told_too() -> None:
    """T1.d: what is wrong, and what to do."""
    async with HoldfastClient("http://127.0.0.1:9", KEY) as client:
        with pytest.raises(
            ServerUnreachableError, match=r"connection refused\); `holdfast serve` starts a server"
        ) as away:
            await client.models()
    assert KEY not in away.value.message
    async with answering(b"SSH-2.0-OpenSSH_9.9\r\n") as (url, _), HoldfastClient(url, KEY) as client:
        with pytest.raises(ServerUnreachableError, match=r"cannot be reached \(\w+\)\.$") as strange:
            await client.models()
    assert KEY not in strange.value.message
    async with answering(http(200, b'{"data": [{"name": 1}]}')) as (url, _), HoldfastClient(url) as client:
        with pytest.raises(ClientError, match="Is it a Holdfast server"):
            await client.models()
        with pytest.raises(ClientError, match="Is it a Holdfast server"):
            await client.health()
    async with answering(None) as (url, _), HoldfastClient(url) as client, asyncio.timeout(10):
        with pytest.raises(ServerUnreachableError, match="does not answer"):
            await client.health(0.1)


async def test_neither_a_redirect_nor_a_proxy_nor_a_netrc_gets_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1.d: the key goes to the server that was named, and no other key goes there."""
    async with answering(http(200, b'{"data": []}')) as (other, overheard):
        monkeypatch.setenv("HTTP_PROXY", other)
        monkeypatch.setenv("http_proxy", other)
        (tmp_path / ".netrc").write_text("default login somebody password of-the-netrc\n")
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        fine = http(200, b'{"data": []}', b"Set-Cookie: a=b")
        async with answering(fine, fine, http(307, b"", f"Location: {other}/".encode())) as (url, asked):
            async with HoldfastClient(url) as client:
                assert await client.models() == []
            # By its name: of addresses no cookies are kept anyway.
            async with HoldfastClient(url.replace("127.0.0.1", "localhost"), KEY) as client:
                assert await client.models() == []
                with pytest.raises(ServerRefusedError, match="307"):
                    await client.models()
    assert overheard == []
    assert [re.findall(rb"(?:Authorization|Cookie): .*", head) for head in asked] == [
        [],
        [f"Authorization: Bearer {KEY}\r".encode()],
        [f"Authorization: Bearer {KEY}\r".encode()],
    ]


async def test_lists_are_asked_for_as_they_are_wanted() -> None:
    async with answering(http(200, b'{"data": []}')) as (url, asked), HoldfastClient(url) as client:
        await client.list_runs(status="failed", session="s 1", limit=7, before="run_9")
        await client.list_runs()
        await client.list_sessions(search="cats", limit=3)
        await client.messages("a/b")
    assert [head.split(b" ")[1].decode() for head in asked] == [
        "/v1/runs?status=failed&session_id=s+1&limit=7&before=run_9",
        "/v1/runs?limit=50",
        "/v1/sessions?search=cats&limit=3",
        "/v1/sessions/a%2Fb/messages",
    ]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8642", "http://localhost:8642"),
        ("http://a.example/", "http://a.example"),
        ("https://a.example/agent/v1/", "https://a.example/agent"),
        ("http://[::1]:8642", "http://[::1]:8642"),
    ],
)
def test_a_server_may_be_named_in_several_ways(given: str, url: str) -> None:
    assert parse_server_url(given) == url


@pytest.mark.parametrize("given", ["ftp://a", "http://", "http://a:x", "http://user:key@a", "http://a?key=1"])
def test_what_is_no_address_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_server_url(given)
    assert "user:key" not in error.value.message
