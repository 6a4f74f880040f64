"""Two agents of the OpenAI Agents SDK: a front desk that hands over to a weather expert."""

from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

model = OpenAIChatCompletionsModel("gpt-5.2", openai_client=AsyncOpenAI())


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


weather = Agent(name="Weather", instructions="You know the weather.", model=model, tools=[get_weather])
agent = Agent(name="Front desk", instructions="Hand over what is about weather.", model=model, handoffs=[weather])
