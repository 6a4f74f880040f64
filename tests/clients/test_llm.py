"""The command-line tool `llm`, unchanged: the settings that docs/clients.md names, and what its user sees."""

import json
import os
from pathlib import Path

import pytest

from holdfast.testing import Fault, Reply, tool_call
from tests.clients.world import TEXT, Ended, World, run_program
from tests.serving import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODELS = """
- model_id: holdfast
  model_name: holdfast
  api_base: "{url}"
  api_key_name: holdfast
  supports_tools: true
  supports_schema: true
- model_id: holdfast-responses
  model_name: holdfast
  api_base: "{url}"
  api_key_name: holdfast
  supports_tools: true
  responses: true
"""
WEATHER = '''
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}"
'''


async def ask(world: World, llm: Path, *arguments: str) -> Ended:
    """Run the tool in a home of its own."""
    home = world.folder / "llm"
    home.mkdir(exist_ok=True)
    (home / "extra-openai-models.yaml").write_text(MODELS.format(url=world.url))
    (home / "keys.json").write_text(json.dumps({"holdfast": KEY}))
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(world.folder), "LLM_USER_PATH": str(home)}
    return await run_program(llm, *arguments, env=env)


@pytest.mark.parametrize("more", [[], ["--no-stream"]], ids=["streamed", "plain"])
async def test_a_text_answer_is_printed(world: World, llm: Path, more: list[str]) -> None:
    """C1.a, C2.c: streamed and plain."""
    world.says(Reply(text=TEXT))
    ended = await ask(world, llm, "-m", "holdfast", *more, "Hello?")
    assert ended == Ended(0, f"{TEXT}\n", "")


@pytest.mark.parametrize("model", ["holdfast", "holdfast-responses"])
async def test_a_function_of_the_user_is_called_and_its_result_used(world: World, llm: Path, model: str) -> None:
    """C11.a, P10.b: `--functions`: called on the user's machine, streamed, on both APIs."""
    world.says(Reply(calls=(tool_call("get_weather", city="Oslo"),)), Reply(text="It rains."))
    ended = await ask(world, llm, "-m", model, "--functions", WEATHER, "Oslo?")
    assert ended == Ended(0, "It rains.\n", "")
    assert world.asked[1].body["messages"][-1]["content"] == "Rain in Oslo"


async def test_a_truncated_answer_is_printed_and_logged_as_cut_off(world: World, llm: Path) -> None:
    """C4.a: the tool has no way to show it on the terminal; its own log has the finish reason."""
    world.says(Reply(text=TEXT, fault=Fault("truncated")))
    ended = await ask(world, llm, "-m", "holdfast", "Hello?")
    assert ended == Ended(0, f"{TEXT}\n", "")
    [logged] = json.loads((await ask(world, llm, "logs", "-n", "1", "--json")).out)
    assert logged["response_json"]["finish_reason"] == "length"


async def test_a_failure_in_a_stream_is_an_error(world: World, llm: Path) -> None:
    """C5.a: what had come is on the terminal, then the message; the exit code is not 0."""
    world.says(Reply(text=TEXT, fault=Fault("error_event", 2)))
    ended = await ask(world, llm, "-m", "holdfast", "Hello?")
    assert ended == Ended(1, "The cat", "Error: The model crashed while it was answering.\n")
    assert len(world.asked) == 1


async def test_a_plain_failure_is_an_error(world: World, llm: Path) -> None:
    """C6.a: the provider's own message, after one try; the exit code is not 0."""
    world.says(Reply(fault=Fault("status", 400)))
    ended = await ask(world, llm, "-m", "holdfast", "--no-stream", "Hello?")
    assert (ended.code, ended.out) == (1, "")
    assert "The request was malformed." in ended.err
    assert len(world.asked) == 1


async def test_on_responses_a_plain_failure_is_an_error_too(world: World, llm: Path) -> None:
    """C6.b: the tool does not look at a response's status; an HTTP error it sees, and its exit code is not 0."""
    world.says(Reply(text=TEXT, fault=Fault("error_event", 2)))
    ended = await ask(world, llm, "-m", "holdfast-responses", "--no-stream", "Hello?")
    assert (ended.code, ended.out) == (1, "")
    assert "The model crashed while it was answering." in ended.err
