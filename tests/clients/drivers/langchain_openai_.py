"""LangChain's `ChatOpenAI` in a LangGraph agent (`create_agent`), which runs its tools by itself."""

from typing import Any

from common import IMAGE, KEY, MAX_STEPS, MODEL, URL, Case, Seen, drive
from common import get_weather as carry_out
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


async def play(case: Case, seen: Seen) -> None:
    model = ChatOpenAI(
        model=MODEL, base_url=URL, api_key=KEY, use_responses_api=case.surface == "responses", streaming=case.stream
    )
    if case.name == "structured":
        wanted = model.with_structured_output(Verdict, method="json_schema")
        seen.data = (await wanted.ainvoke("Well?")).model_dump()
        return
    if case.name == "abort":
        async for chunk in model.astream("Hello?"):
            seen.text += chunk.text
            if seen.text:
                return
        return

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return carry_out(seen, city)

    agent = create_agent(model, [get_weather] if case.offers_tool else [])
    state: dict[str, Any] = {"messages": []}
    for prompt in case.prompts:
        content: Any = prompt
        if case.name == "image":
            content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        state["messages"] = [*state["messages"], {"role": "user", "content": content}]
        limits = {"recursion_limit": 2 * MAX_STEPS}
        if case.stream:
            async for mode, part in agent.astream(state, limits, stream_mode=["messages", "values"]):
                if mode == "values":
                    state = part
        else:
            state = await agent.ainvoke(state, limits)
        _look(state["messages"], seen)


def _look(messages: list[Any], seen: Seen) -> None:
    last = messages[-1]
    said = last.response_metadata
    seen.text = last.text
    cut = said.get("incomplete_details") or {}
    seen.ending = cut.get("reason") or said.get("finish_reason") or said.get("status")
    seen.shown = [
        block["name"]
        for message in messages
        if message.type == "ai"
        for block in message.content_blocks
        if block["type"] == "server_tool_call"
    ]


if __name__ == "__main__":
    drive(play, "langchain-openai", "langchain", "langgraph")
