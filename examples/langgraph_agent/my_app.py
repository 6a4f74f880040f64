"""A graph of LangGraph that looks up the weather, and asks before it does."""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


graph = create_agent(
    ChatOpenAI(model="gpt-5.2"),
    tools=[get_weather],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"get_weather": True})],
    checkpointer=InMemorySaver(),
)
