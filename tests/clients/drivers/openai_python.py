"""openai-python, as its documentation shows it: a loop by hand around tools, helpers for structured answers."""

import json
from typing import Any

from common import IMAGE, KEY, MAX_STEPS, MODEL, URL, WEATHER_SCHEMA, Case, Seen, drive, get_weather
from openai import AsyncOpenAI
from pydantic import BaseModel

CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA, "strict": True}


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


async def play(case: Case, seen: Seen) -> None:
    async with AsyncOpenAI(base_url=URL, api_key=KEY) as client:
        await (_chat if case.surface == "chat" else _responses)(client, case, seen)


async def _chat(client: AsyncOpenAI, case: Case, seen: Seen) -> None:
    if case.name == "structured":
        parsed = await client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "Well?"}], response_format=Verdict
        )
        seen.data = parsed.choices[0].message.parsed.model_dump()
        return
    more: dict[str, Any] = {"tools": [CHAT_TOOL]} if case.offers_tool else {}
    messages: list[Any] = []
    for prompt in case.prompts:
        content: Any = prompt
        if case.name == "image":
            content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        messages.append({"role": "user", "content": content})
        for _ in range(MAX_STEPS):
            said = await _chat_once(client, case, seen, messages, more)
            if said is None or not said.get("tool_calls"):
                messages.append({"role": "assistant", "content": seen.text})
                break
            messages.append(said)
            for call in said["tool_calls"]:
                result = get_weather(seen, **json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def _chat_once(
    client: AsyncOpenAI, case: Case, seen: Seen, messages: list[Any], more: dict[str, Any]
) -> dict[str, Any] | None:
    seen.text = ""
    if not case.stream:
        answer = await client.chat.completions.create(model=MODEL, messages=messages, **more)
        choice = answer.choices[0]
        seen.text, seen.ending = choice.message.content or "", choice.finish_reason
        return choice.message.model_dump(exclude_none=True)
    calls: dict[int, dict[str, Any]] = {}
    stream = await client.chat.completions.create(model=MODEL, messages=messages, stream=True, **more)
    async for chunk in stream:
        choice = chunk.choices[0]
        seen.text += choice.delta.content or ""
        seen.ending = choice.finish_reason or seen.ending
        if case.name == "abort" and seen.text:
            await stream.close()
            return None
        for delta in choice.delta.tool_calls or ():
            empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            call = calls.setdefault(delta.index, empty)
            call["id"] += delta.id or ""
            call["function"]["name"] += delta.function.name or ""
            call["function"]["arguments"] += delta.function.arguments or ""
    return {"role": "assistant", "content": seen.text, "tool_calls": list(calls.values())}


async def _responses(client: AsyncOpenAI, case: Case, seen: Seen) -> None:
    if case.name == "structured":
        parsed = await client.responses.parse(model=MODEL, input="Well?", text_format=Verdict)
        seen.data = parsed.output_parsed.model_dump()
        return
    more: dict[str, Any] = {"tools": [RESPONSES_TOOL]} if case.offers_tool else {}
    items: list[Any] = []
    for prompt in case.prompts:
        content: list[Any] = [{"type": "input_text", "text": prompt}]
        if case.name == "image":
            content.append({"type": "input_image", "image_url": IMAGE, "detail": "auto"})
        items.append({"role": "user", "content": content})
        for _ in range(MAX_STEPS):
            response = await _responses_once(client, case, seen, items, more)
            if response is None:
                return
            items += [item.to_dict() for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            for call in calls:
                result = get_weather(seen, **json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
            if not calls:
                break


async def _responses_once(client: AsyncOpenAI, case: Case, seen: Seen, items: list[Any], more: dict[str, Any]) -> Any:
    if case.stream:
        stream = await client.responses.create(model=MODEL, input=items, stream=True, **more)
        response = None
        async for event in stream:
            if case.name == "abort" and event.type == "response.output_text.delta":
                seen.text = event.delta
                await stream.close()
                return None
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                response = event.response
    else:
        response = await client.responses.create(model=MODEL, input=items, **more)
    details = response.incomplete_details
    seen.text, seen.ending = response.output_text, details.reason if details else response.status
    seen.shown += [item.name for item in response.output if item.type == "mcp_call"]
    if response.status == "failed":
        raise RuntimeError(response.error.message)
    return response


if __name__ == "__main__":
    drive(play, "openai")
