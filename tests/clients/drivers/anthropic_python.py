"""anthropic for Python, as its documentation shows it: a loop by hand around tools, helpers for streams and schemas."""

from typing import Any

from anthropic import AsyncAnthropic
from common import KEY, MAX_STEPS, MODEL, PIXEL, URL, WEATHER_SCHEMA, Case, Seen, drive, get_weather
from pydantic import BaseModel

TOOL: Any = {"name": "get_weather", "input_schema": WEATHER_SCHEMA}
IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


async def play(case: Case, seen: Seen) -> None:
    async with AsyncAnthropic(base_url=URL.removesuffix("/v1"), api_key=KEY) as client:
        if case.name == "structured":
            await _parse(client, case, seen)
            return
        more: dict[str, Any] = {"tools": [TOOL]} if case.offers_tool else {}
        messages: list[Any] = []
        for prompt in case.prompts:
            parts = [{"type": "text", "text": prompt}, IMAGE]
            messages.append({"role": "user", "content": parts if case.name == "image" else prompt})
            for _ in range(MAX_STEPS):
                said = await _once(client, case, seen, messages, more)
                if said is None:
                    return
                messages.append({"role": "assistant", "content": said.content})
                calls = [block for block in said.content if block.type == "tool_use"]
                if not calls:
                    break
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(seen, **call.input)}
                    for call in calls
                ]
                messages.append({"role": "user", "content": results})


async def _once(client: AsyncAnthropic, case: Case, seen: Seen, messages: list[Any], more: dict[str, Any]) -> Any:
    asked = {"model": MODEL, "max_tokens": 1000, "messages": messages, **more}
    seen.text = ""
    if case.stream:
        async with client.messages.stream(**asked) as stream:
            async for text in stream.text_stream:
                seen.text += text
                if case.name == "abort":
                    return None
            message = await stream.get_final_message()
    else:
        message = await client.messages.create(**asked)
    seen.text = "".join(block.text for block in message.content if block.type == "text")
    seen.ending = message.stop_reason
    seen.shown += [block.name for block in message.content if block.type == "mcp_tool_use"]
    return message


async def _parse(client: AsyncAnthropic, case: Case, seen: Seen) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "Well?"}]}
    if case.stream:
        async with client.messages.stream(**asked, output_format=Verdict) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await client.messages.parse(**asked, output_format=Verdict)
    seen.data = message.parsed_output.model_dump()


if __name__ == "__main__":
    drive(play, "anthropic")
