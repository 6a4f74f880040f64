"""Agents of the OpenAI Agents SDK, as somebody would write them who has never heard of a server."""

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool
from common import KEY, URL, get_weather

client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=3)
model = OpenAIChatCompletionsModel("m-1", openai_client=client)
settings = ModelSettings(include_usage=True)
weather = function_tool(get_weather, failure_error_function=None)

agent = Agent(name="Terse", instructions="You are terse.", model=model, model_settings=settings, tools=[weather])
responses = Agent(name="Terse", model=OpenAIResponsesModel("m-1", openai_client=client), tools=[weather])
careful = Agent(name="Careful", model=model, tools=[function_tool(get_weather, needs_approval=True)])
handing = Agent(name="Front desk", model=model, handoffs=[agent])
