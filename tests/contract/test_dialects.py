"""W: the dialects, each a small table of words."""

import base64
from pathlib import Path

import aiohttp
import pytest

from holdfast.config import AgentSettings, DialectName, LimitSettings, ServerSettings
from holdfast.testing import Fault, Reply, tool_call
from tests.serving import CHAT, KEY, Answer, World, serving

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


PNG = b"\x89PNG\r\n\x1a\nrest"


async def send_form(world: World, **fields: str | tuple[str, bytes]) -> Answer:
    """A form as browsers and curl send it; a pair is a file."""
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, str):
            form.add_field(name, value)
        else:
            form.add_field("files", value[1], filename=value[0], content_type="application/octet-stream")
    async with world.client.session.post(CHAT, data=form) as response:
        return Answer(response.status, response.headers, await response.read())


async def test_nanobot_clients_may_send_a_form_with_files() -> None:
    """W2: its session is the same; pictures and text reach the model; without a message the files are the question."""
    async with serving([Reply(text="Hi.")] * 3, server=speaking("nanobot")) as world:
        talk = await send_form(world, message="Look", session_id="ann", model="gpt-99", a=("a.png", PNG))
        text = await send_form(world, b=("b.txt", "näh".encode()))
        bare = await send_form(world, message="Hi", stream="true")
        first, second, third = (request.body["messages"][-1]["content"] for request in world.provider.requests)
    assert (talk.status, talk.json["model"], talk.headers["X-Holdfast-Session-Id"]) == (200, "gpt-99", "api:ann")
    assert [part["type"] for part in first] == ["text", "image_url"]
    assert first[1]["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert (text.status, text.headers["X-Holdfast-Session-Id"]) == (200, "api:default")
    assert "Please look at the attached files." in str(second) and "The file b.txt:\\n\\nnäh" in str(second)
    assert (bare.data[-1], third) == ("[DONE]", "Hi")


@pytest.mark.parametrize(
    ("content_type", "body", "status", "param"),
    [
        ("multipart/form-data", b"x", 400, None),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx", 400, None),
        ("multipart/form-data; boundary=b", b"--b\r\nX: y\r\n\r\nx\r\n--b--\r\n", 400, None),
        ("multipart/form-data; boundary=b", b"--b--", 400, "message"),
        ("multipart/form-data; boundary=b", b"x" * 1_001, 413, None),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.pdf"\r\n\r\n%PDF\0\r\n--b--\r\n',
            400,
            "files[0]",
        ),
    ],
)
async def test_a_form_that_makes_no_sense_is_refused(
    content_type: str, body: bytes, status: int, param: str | None
) -> None:
    """W2, S7.a, C10.d: by name, and nothing is run."""
    async with serving(server=ServerSettings(dialect="nanobot", max_body_bytes=1_000)) as world:
        answer = await world.client.post(CHAT, body, Content_Type=content_type)
        assert (answer.status, answer.error["param"]) == (status, param)
        ours = await world.client.post(CHAT, body, Content_Type=content_type, X_Holdfast_Dialect="holdfast")
        assert ours.error["code"] == ("body_too_large" if status == 413 else "invalid_json")
        assert not world.provider.requests


@pytest.mark.parametrize(("dialect", "status"), [("holdfast", 502), ("nanobot", 504)])
async def test_a_plain_answer_that_took_too_long_is_told_as_its_clients_expect(
    dialect: DialectName, status: int
) -> None:
    """W2, R10.b: a time-out without a word is 504 for nanobot's clients."""
    limits = LimitSettings(run_seconds=0.2)
    async with serving([Reply(text="x", fault=Fault("stall", 0))], server=speaking(dialect), limits=limits) as world:
        answer = await world.client.chat()
    extras = answer.error["holdfast"]
    assert (answer.status, extras["outcome"], extras["reason"]) == (status, "cancelled", "timeout")


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
