"""J1: empty input is refused on every surface, and the error names the field that was sent."""

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.serving import serving

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
NOTHINGS: tuple[Any, ...] = ("", " \n", [])
BLANKS: tuple[Any, ...] = ("", " \n\t", [{"type": "text", "text": ""}], [{"type": "input_text", "text": "  "}], [])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *(("/v1/chat/completions", {"messages": [user(blank)]}, "messages[0].content") for blank in BLANKS),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "system", "content": "x"}, user("Hi"), user("")]},
            "messages[2].content",
        ),
        *(("/v1/responses", {"input": blank}, "input") for blank in NOTHINGS),
        *(("/v1/responses", {"input": [user("Hi"), user(blank)]}, "input[1].content") for blank in BLANKS),
        *(
            (path, {field: [user(""), {"role": "developer", "content": "x"}]}, f"{field}[0].content")
            for path, field in (("/v1/chat/completions", "messages"), ("/v1/responses", "input"), ("/v1/runs", "input"))
        ),
        *(("/v1/runs", {"input": blank}, "input") for blank in NOTHINGS),
        *(("/v1/runs", {"input": [user(blank)], "instructions": "x"}, "input[0].content") for blank in BLANKS),
        ("/v1/runs", {"messages": []}, "messages"),
        ("/v1/runs", {"messages": [user("")]}, "messages[0].content"),
        ("/v1/runs", {"input": [{"role": "system", "content": "x"}]}, "input"),
        ("/v1/runs", {}, "input"),
    ],
)
async def test_empty_input_is_refused_by_the_name_of_the_field_that_was_sent(
    path: str, body: dict[str, Any], param: str
) -> None:
    """J1.g: 400 everywhere; nothing is run and nothing saved."""
    async with serving() as world:
        answer = await world.client.post(path, body)
        assert (answer.status, answer.error["param"]) == (400, param), answer.body
        assert param in answer.error["message"]
        assert (await world.client.get("/v1/runs")).json["data"] == []
        assert not world.provider.requests


@pytest.mark.parametrize("field", ["content", "message"])
@pytest.mark.parametrize("blank", [*BLANKS, None])
async def test_an_empty_message_steers_nothing(field: str, blank: Any) -> None:
    """J1.g, J1.f: steering too is refused when it says nothing, by the name of the field that was sent."""
    async with serving([Reply(text=("one", "two"), hold_after=1)]) as world:
        run = (await world.client.post("/v1/runs", {"input": "Hello?"})).json["run_id"]
        answer = await world.client.post(f"/v1/runs/{run}/messages", {field: blank})
        assert (answer.status, answer.error["param"]) == (400, "content" if blank is None else field)
        await world.client.post(f"/v1/runs/{run}/stop")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [user([PICTURE])]}),
        ("/v1/chat/completions", {"messages": [user(""), {"role": "assistant", "content": ""}, user("Well?")]}),
        ("/v1/responses", {"input": [user("Hi"), {"role": "assistant", "content": ""}, user("Well?")]}),
        ("/v1/runs", {"input": [user("Hi"), {"role": "assistant", "content": ""}, user("Well?")]}),
    ],
)
async def test_a_picture_alone_and_an_empty_past_are_not_empty_input(path: str, body: dict[str, Any]) -> None:
    """J1.g: only what is asked now has to say something."""
    async with serving([Reply(text="Yes.")]) as world:
        assert (await world.client.post(path, body)).status in (200, 202)
