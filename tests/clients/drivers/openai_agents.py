"""The OpenAI Agents SDK: an `Agent` on either of its models, run by `Runner`."""

from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import IMAGE, KEY, MAX_STEPS, MODEL, URL, Case, Seen, drive
from common import get_weather as carry_out
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


async def play(case: Case, seen: Seen) -> None:
    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return carry_out(seen, city)

    async with AsyncOpenAI(base_url=URL, api_key=KEY) as client:
        kind = OpenAIChatCompletionsModel if case.surface == "chat" else OpenAIResponsesModel
        agent = Agent(
            name="tester",
            model=kind(model=MODEL, openai_client=client),
            tools=[get_weather] if case.offers_tool else [],
            output_type=Verdict if case.name == "structured" else None,
        )
        said: list[Any] = []
        for prompt in case.prompts:
            content: list[Any] = [{"type": "input_text", "text": prompt}]
            if case.name == "image":
                content.append({"type": "input_image", "image_url": IMAGE, "detail": "auto"})
            said = [*said, {"role": "user", "content": content}]
            result = await _run(agent, case, seen, said)
            if result is None:
                return
            said = result.to_input_list()
            if case.name == "structured":
                seen.data = result.final_output.model_dump()
            else:
                seen.text = result.final_output
            seen.shown += [
                item.raw_item.name for item in result.new_items if getattr(item.raw_item, "type", "") == "mcp_call"
            ]


async def _run(agent: Agent, case: Case, seen: Seen, said: list[Any]) -> Any:
    if not case.stream:
        return await Runner.run(agent, said, max_turns=MAX_STEPS)
    result = Runner.run_streamed(agent, said, max_turns=MAX_STEPS)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            seen.text += event.data.delta
            if case.name == "abort":
                result.cancel()
                return None
    return result


if __name__ == "__main__":
    drive(play, "openai-agents", "openai")
