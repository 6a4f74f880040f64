"""An agent of pydantic-ai with two tools, one of which needs approval."""

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def book_trip(city: str) -> str:
    """Book a trip."""
    return f"Booked: {city}."


agent = Agent(
    OpenAIChatModel("gpt-5.2"),
    instructions="You plan trips.",
    tools=[get_weather, Tool(book_trip, requires_approval=True)],
)
