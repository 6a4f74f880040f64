"""M5: a stream of the Messages API is followed again on a server that was killed in between, by kill -9."""

from pathlib import Path

import pytest

from holdfast.chaos.recorded import RecordedRequest
from holdfast.testing import Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.messages_world import MESSAGES, asking, events_of, fold, message_of, text_of
from tests.serving import Answer, Client, running_server

KEYED = {"Idempotency_Key": "k"}
PROTOCOLS = ["chat_completions", "responses", "anthropic_messages"]


def go_on(request: RecordedRequest) -> Reply:
    """A model that is held after two words; asked to go on, it says the rest."""
    said = request.body.get("messages") or request.body["input"]
    if any(message.get("role") == "assistant" for message in said):
        return Reply(text=" three four")
    return Reply(text=("One", " two", " three"), hold_after=2)


def words_of(events: Answer) -> str:
    """What a run's own events say."""
    return "".join(event["text"] for event in events.data if event["type"] == "text.added")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_is_followed_again_after_kill_9(tmp_path: Path, protocol: str) -> None:
    """M5.c, M5.d, R15.b: by its run id and by its key, while it goes on and after; what was seen is its beginning."""
    asked = asking(stream=True, on_disconnect="continue")
    async with ScriptedProvider(go_on) as provider:
        config = CONFIG.format(url=provider.url).replace("chat_completions", protocol)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                async with client.opened("POST", MESSAGES, asked, **KEYED) as live:
                    run = live.headers["X-Holdfast-Run-Id"]
                    seen = await live.content.readuntil(b'"text":" two"}}\n\n')
                    server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                again = await client.post(MESSAGES, asked, **KEYED)
                events = await client.get(f"/v1/runs/{run}/events")
                rest = await client.get(f"/v1/runs/{run}/events?after=3")
                later = await client.post(MESSAGES, asked, **KEYED)
    message = message_of(again)
    assert (text_of(message), message["stop_reason"]) == ("One two three four", "end_turn")
    assert again.body.startswith(seen) and later.body == again.body
    assert again.headers["X-Holdfast-Run-Id"] == run
    assert words_of(events) == "One two three four"
    assert rest.data == events.data[4:] and rest.data[-1]["outcome"]["outcome"] == "completed"
    assert len(provider.requests) == 2


async def test_a_stream_that_ended_with_its_server_says_so_when_it_is_followed_again(tmp_path: Path) -> None:
    """M5.c, M3.e: what was attached is partial, and no `end_turn`."""
    asked = asking(stream=True)
    async with ScriptedProvider(go_on) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                async with client.opened("POST", MESSAGES, asked, **KEYED) as live:
                    await live.content.readuntil(b'"text":" two"}}\n\n')
                    server.kill()
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as client:
                message, error = fold(events_of(await client.post(MESSAGES, asked, **KEYED)))
    assert (text_of(message), message["stop_reason"]) == ("One two", None)
    assert error is not None and error["holdfast"]["reason"] == "server_restart"
