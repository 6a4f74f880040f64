"""Graphs of LangGraph, as somebody would write them who has never heard of a server."""

from typing import Any

from common import KEY, URL, get_weather
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

options: dict[str, Any] = {"model": "m-1", "base_url": URL, "api_key": KEY, "max_retries": 0, "timeout": 3}
model = ChatOpenAI(**options, stream_usage=True)

agent = create_agent(model, tools=[get_weather], system_prompt="You are terse.")
responses = create_agent(ChatOpenAI(**options, use_responses_api=True), tools=[get_weather])
careful = create_agent(
    model,
    tools=[get_weather],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"get_weather": True})],
    checkpointer=InMemorySaver(),
)
remembering = create_agent(model, tools=[get_weather], checkpointer=InMemorySaver())


def ask(_state: MessagesState) -> dict[str, Any]:
    """A node that wants a person's word."""
    return {"messages": [("ai", "Yes." if interrupt("Shall I?") else "No.")]}


def ask_unkept(state: MessagesState) -> dict[str, Any]:
    """The same."""
    return ask(state)


asking = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())
forgetful = StateGraph(MessagesState).add_node(ask_unkept).add_edge(START, "ask_unkept").compile()
