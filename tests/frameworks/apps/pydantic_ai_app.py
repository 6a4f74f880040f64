"""Agents of pydantic-ai, as somebody would write them who has never heard of a server."""

import openai
from common import KEY, URL, get_weather
from pydantic import BaseModel
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=3))
model = OpenAIChatModel("m-1", provider=provider)

agent = Agent(model, system_prompt="You are terse.", tools=[get_weather])
responses = Agent(OpenAIResponsesModel("m-1", provider=provider), tools=[get_weather])
careful = Agent(model, tools=[Tool(get_weather, requires_approval=True)])


class Verdict(BaseModel):
    """A structured answer."""

    verdict: str


structured = Agent(model, output_type=Verdict)
