"""pydantic-ai: an `Agent` on its OpenAI models."""

import base64
from typing import Any

from common import KEY, MODEL, PIXEL, URL, Case, Seen, drive
from common import get_weather as carry_out
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


async def play(case: Case, seen: Seen) -> None:
    provider = OpenAIProvider(base_url=URL, api_key=KEY)
    kind = OpenAIChatModel if case.surface == "chat" else OpenAIResponsesModel
    output: Any = NativeOutput(Verdict) if case.name == "structured" else str
    agent = Agent(kind(MODEL, provider=provider), output_type=output)
    if case.offers_tool:

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather of a city."""
            return carry_out(seen, city)

    history: list[Any] = []
    for prompt in case.prompts:
        content: Any = prompt
        if case.name == "image":
            content = [prompt, BinaryContent(base64.b64decode(PIXEL), media_type="image/png")]
        if case.stream:
            async with agent.run_stream(content, message_history=history) as result:
                if case.name == "structured":
                    output = await result.get_output()
                else:
                    async for text in result.stream_text(debounce_by=None):
                        seen.text = text
                        if case.name == "abort":
                            return
                    output = seen.text
            history = result.all_messages()
        else:
            whole = await agent.run(content, message_history=history)
            output, history = whole.output, whole.all_messages()
        if case.name == "structured":
            seen.data = output.model_dump()
        else:
            seen.text = output
        seen.ending = history[-1].finish_reason
        seen.shown = [
            part.tool_name for message in history for part in message.parts if part.part_kind == "builtin-tool-call"
        ]


if __name__ == "__main__":
    drive(play, "pydantic-ai-slim", "openai")
