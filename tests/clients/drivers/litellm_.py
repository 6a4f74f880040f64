"""litellm as a library, for a server that speaks the OpenAI API: a loop by hand around tools."""

import json
from typing import Any

import litellm
from common import IMAGE, KEY, MAX_STEPS, MODEL, URL, VERDICT_SCHEMA, WEATHER_SCHEMA, Case, Seen, drive, get_weather

CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA, "strict": True}
COMMON: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}


async def play(case: Case, seen: Seen) -> None:
    await (_chat if case.surface == "chat" else _responses)(case, seen)


async def _chat(case: Case, seen: Seen) -> None:
    more: dict[str, Any] = {"tools": [CHAT_TOOL]} if case.offers_tool else {}
    if case.name == "structured":
        schema = {"name": "verdict", "schema": VERDICT_SCHEMA, "strict": True}
        more = {"response_format": {"type": "json_schema", "json_schema": schema}}
    messages: list[Any] = []
    for prompt in case.prompts:
        content: Any = prompt
        if case.name == "image":
            content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        messages.append({"role": "user", "content": content})
        for _ in range(MAX_STEPS):
            answer: Any = await litellm.acompletion(**COMMON, messages=messages, stream=case.stream, **more)
            if case.stream:
                chunks = []
                async for chunk in answer:
                    chunks.append(chunk)
                    if case.name == "abort" and chunk.choices[0].delta.content:
                        seen.text = chunk.choices[0].delta.content
                        await answer.aclose()
                        return
                answer = litellm.stream_chunk_builder(chunks, messages=messages)
            choice = answer.choices[0]
            seen.text, seen.ending = choice.message.content or "", choice.finish_reason
            messages.append(choice.message.model_dump(exclude_none=True))
            calls = choice.message.tool_calls or []
            for call in calls:
                result = get_weather(seen, **json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not calls:
                break
    if case.name == "structured":
        seen.data = json.loads(seen.text)


async def _responses(case: Case, seen: Seen) -> None:
    more: dict[str, Any] = {"tools": [RESPONSES_TOOL]} if case.offers_tool else {}
    if case.name == "structured":
        wanted = {"type": "json_schema", "name": "verdict", "schema": VERDICT_SCHEMA, "strict": True}
        more = {"text": {"format": wanted}}
    items: list[Any] = []
    for prompt in case.prompts:
        content: list[Any] = [{"type": "input_text", "text": prompt}]
        if case.name == "image":
            content.append({"type": "input_image", "image_url": IMAGE, "detail": "auto"})
        items.append({"role": "user", "content": content})
        for _ in range(MAX_STEPS):
            response: Any = await litellm.aresponses(**COMMON, input=items, stream=case.stream, **more)
            if case.stream:
                stream, response = response, None
                async for event in stream:
                    kind = str(getattr(event.type, "value", event.type))
                    if case.name == "abort" and kind == "response.output_text.delta":
                        seen.text = event.delta
                        await stream.aclose() if hasattr(stream, "aclose") else await stream.response.aclose()
                        return
                    if kind in ("response.completed", "response.incomplete", "response.failed"):
                        response = event.response
            output = [_as_dict(item) for item in response.output]
            seen.text = "".join(
                part["text"] for item in output if item["type"] == "message" for part in item["content"]
            )
            details = response.incomplete_details
            reason = details.get("reason") if isinstance(details, dict) else getattr(details, "reason", None)
            seen.ending = reason or response.status
            seen.shown += [item["name"] for item in output if item["type"] == "mcp_call"]
            if response.status == "failed":
                raise RuntimeError(str(response.error))
            items += output
            calls = [item for item in output if item["type"] == "function_call"]
            for call in calls:
                result = get_weather(seen, **json.loads(call["arguments"]))
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})
            if not calls:
                break
    if case.name == "structured":
        seen.data = json.loads(seen.text)


def _as_dict(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else item.model_dump(exclude_none=True)


if __name__ == "__main__":
    drive(play, "litellm", "openai")
