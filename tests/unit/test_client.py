"""The client: logs over lost connections, events that never end, errors by name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

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
            assert (await client.models())[0].root == "scripted/m-1"
            stopped = await client.stop(first.run_id)
            assert (stopped.stopped, stopped.text, stopped.outcome) == (False, "One.", "completed")
            with pytest.raises(ServerRefusedError, match="has ended"):
                await client.steer(first.run_id, "more")


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
