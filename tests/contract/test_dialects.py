"""W: the dialects, each a small table of words."""

from pathlib import Path

import pytest

from holdfast.config import AgentSettings, DialectName, ServerSettings
from holdfast.testing import Fault, Reply, tool_call
from tests.serving import KEY, serving

FAILS = Reply(fault=Fault("status", 400))


def speaking(dialect: DialectName) -> ServerSettings:
    return ServerSettings(dialect=dialect)


async def test_hermes_clients_find_their_names(tmp_path: Path) -> None:
    """W1.a: headers, tool events, extras, capabilities, platform, model, owner."""
    (tmp_path / "a.txt").write_text("alpha")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [
        Reply(calls=(tool_call("read_file", path="a.txt"),)),
        Reply(text="Alpha.", fault=Fault("truncated")),
        Reply(text="As far as it", fault=Fault("truncated")),
        Reply(text="Hi."),
    ]
    async with serving(script, server=speaking("hermes"), agent=agent, key=KEY) as world:
        streamed = await world.client.chat(stream=True)
        plain = await world.client.chat()
        headers = {"X_Hermes_Session_Id": "s1", "X_Hermes_Session_Key": "ann"}
        named = await world.client.chat(headers=headers)
        models = (await world.client.get("/v1/models")).json["data"]
        capabilities = (await world.client.get("/v1/capabilities")).json
        health = (await world.client.get("/health")).json
    activity = [frame for frame in streamed.frames if frame.startswith("event: ")]
    assert [frame.split("\n")[0] for frame in activity] == ["event: hermes.tool.progress"] * 2
    said = [data for data in streamed.data if data != "[DONE]" and "toolCallId" in data]
    assert said[0] == {"tool": "read_file", "toolCallId": "call_0", "label": "read_file a.txt", "status": "running"}
    assert said[1]["status"] == "completed"
    assert streamed.data[-2]["hermes"]["error_code"] == "output_truncated"
    assert "X-Hermes-Run-Id" in streamed.headers
    assert plain.headers["X-Hermes-Completed"] == "false"
    assert plain.headers["X-Hermes-Partial"] == "true"
    assert (named.headers["X-Hermes-Session-Id"], named.headers["X-Hermes-Session-Key"]) == ("s1", "ann")
    assert not [name for answer in (streamed, plain, named) for name in answer.headers if "holdfast" in name.lower()]
    assert (models[0]["id"], models[0]["owned_by"]) == ("hermes-agent", "hermes")
    assert capabilities["object"] == "hermes.api_server.capabilities"
    assert (capabilities["platform"], capabilities["model"]) == ("hermes-agent", "hermes-agent")
    assert capabilities["features"]["session_continuity_header"] == "X-Hermes-Session-Id"
    assert capabilities["features"]["session_key_header"] == "X-Hermes-Session-Key"
    assert health["platform"] == "hermes-agent"


async def test_nanobot_clients_have_one_session_unless_they_name_another() -> None:
    """W2: `session_id` in the body is session `api:<id>`, and `api:default` without one."""
    async with serving([Reply(text="Hi.")] * 4, server=speaking("nanobot")) as world:
        sessions = []
        for session in (None, "ann", None, "ann"):
            answer = await world.client.chat("Hello?", session_id=session)
            sessions.append(answer.headers["X-Holdfast-Session-Id"])
        heard = [len(request.body["messages"]) for request in world.provider.requests]
        stored = await world.client.get("/v1/sessions/api:ann/messages")
    assert sessions == ["api:default", "api:ann"] * 2
    assert heard == [1, 1, 3, 3]
    assert [message["content"] for message in stored.json["data"]] == ["Hello?", "Hi."] * 2


@pytest.mark.parametrize(("dialect", "done"), [("holdfast", True), ("hermes", True), ("nanobot", False)])
async def test_after_a_failure_a_stream_ends_as_its_clients_expect(dialect: DialectName, done: bool) -> None:
    """W3.a, W3.b: `[DONE]` after the error chunk, or the end of the body without any success terminator."""
    async with serving([FAILS, Reply(text="Hi.")], server=speaking(dialect)) as world:
        failed = await world.client.chat(stream=True)
        well = await world.client.chat(stream=True)
    assert (failed.data[-1] == "[DONE]") is done
    assert failed.finish == "error"
    assert failed.chunks[-1]["error"]["message"] == "The request was malformed."
    assert well.finish == "stop"
    assert well.data[-1] == "[DONE]"


async def test_a_configured_name_stands_in_every_dialect() -> None:
    """W1.a, S2: the default model name is a default."""
    async with serving(server=ServerSettings(dialect="hermes", name="otto")) as world:
        assert (await world.client.get("/v1/models")).json["data"][0]["id"] == "otto"
