"""llama-index: `OpenAILike` (chat) and `OpenAIResponses`, in a `FunctionAgent` where there are tools."""

from contextlib import aclosing
from typing import Any

from common import KEY, MAX_STEPS, MODEL, PIXEL, URL, Case, Seen, drive
from common import get_weather as carry_out
from llama_index.core import set_global_tokenizer
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

# Its own would be fetched from the net.
set_global_tokenizer(str.split)


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


def _model(case: Case) -> Any:
    if case.surface == "chat":
        return OpenAILike(
            model=MODEL,
            api_base=URL,
            api_key=KEY,
            is_chat_model=True,
            is_function_calling_model=True,
            should_use_structured_outputs=True,
        )
    return OpenAIResponses(model="gpt-4o", api_base=URL, api_key=KEY)


async def play(case: Case, seen: Seen) -> None:
    model = _model(case)
    if case.name == "structured":
        answer = await model.as_structured_llm(Verdict).achat([ChatMessage("Well?")])
        seen.data = answer.raw.model_dump()
        return
    if case.offers_tool:
        await _agent(model, case, seen)
        return
    history: list[ChatMessage] = []
    for prompt in case.prompts:
        blocks: list[Any] = [TextBlock(text=prompt)]
        if case.name == "image":
            blocks.append(ImageBlock(image=PIXEL.encode(), image_mimetype="image/png"))
        history.append(ChatMessage(role="user", blocks=blocks))
        if case.stream:
            answer = None
            async with aclosing(await model.astream_chat(history)) as answers:
                async for answer in answers:
                    if case.name == "abort" and answer.delta:
                        seen.text = answer.delta
                        return
        else:
            answer = await model.achat(history)
        seen.text = answer.message.content or ""
        seen.ending = _ending(answer)
        history.append(answer.message)


def _ending(answer: Any) -> str | None:
    raw = answer.raw
    if choices := getattr(raw, "choices", None):
        return choices[0].finish_reason
    response = getattr(raw, "response", raw)
    details = getattr(response, "incomplete_details", None)
    return details.reason if details else getattr(response, "status", None)


async def _agent(model: Any, case: Case, seen: Seen) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return carry_out(seen, city)

    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=model, streaming=case.stream)
    handler = agent.run(case.prompts[0], max_iterations=MAX_STEPS)
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            seen.text = event.response
    seen.text = (await handler).response.content or ""


if __name__ == "__main__":
    drive(play, "llama-index-llms-openai", "llama-index-core", "openai")
