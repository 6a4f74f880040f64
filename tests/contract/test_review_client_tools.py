"""Client tools where it gets untidy: ids that come twice, results that come late, twice, or with a question (C11)."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import AgentSettings, Protocol
from holdfast.testing import Reply, ScriptedCall
from tests.serving import serving

PICK = {"type": "function", "function": {"name": "pick", "parameters": {"type": "object", "properties": {}}}}


def reading_then_picking(second: str = "call_0") -> list[Reply]:
    """A turn for the server's tool, a turn for the client's, and the end."""
    return [
        Reply(calls=(ScriptedCall(name="read_file", arguments='{"path": "x.txt"}', id="call_0"),)),
        Reply(calls=(ScriptedCall(name="pick", id=second),)),
        Reply(text="Done."),
    ]


def with_files(folder: Path) -> AgentSettings:
    (folder / "x.txt").write_text("hello")
    return AgentSettings(prompt="", tools=("files",), workspace=str(folder))


def called(answer: Any) -> dict[str, Any]:
    """The only call that an answer, streamed or plain, leaves to the client."""
    if answer.headers["content-type"].startswith("application/json"):
        [call] = answer.json["choices"][0]["message"]["tool_calls"]
    else:
        deltas = [choice["delta"] for chunk in answer.chunks for choice in chunk["choices"]]
        [call] = [call for delta in deltas for call in delta.get("tool_calls", ())]
    found: dict[str, Any] = call
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic_messages"])
async def test_a_call_whose_id_was_used_in_an_earlier_turn_still_reaches_the_client(
    tmp_path: Path, protocol: Protocol, stream: bool
) -> None:
    """C11: some servers number their calls from 0 in every turn; the calls stay apart, and none gets lost."""
    async with serving(reading_then_picking(), protocol=protocol, agent=with_files(tmp_path)) as world:
        answer = await world.client.chat("Go", tools=[PICK], stream=stream)
        assert answer.finish == "tool_calls"
        call = called(answer)
        assert call["function"]["name"] == "pick"
        assert call["id"] != "call_0"
