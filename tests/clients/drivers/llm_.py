"""`llm` as a library, with models from its own settings file, as its command-line tool has them."""

import asyncio
import base64
import json
import os
from pathlib import Path

from common import KEY, MAX_STEPS, PIXEL, URL, VERDICT_SCHEMA, Case, Seen, drive
from common import get_weather as carry_out

HOME = Path(os.environ["LLM_USER_PATH"])
MODELS = """
- model_id: chat
  model_name: holdfast
  api_base: "{url}"
  api_key_name: holdfast
  supports_tools: true
  supports_schema: true
  vision: true
- model_id: responses
  model_name: holdfast
  api_base: "{url}"
  api_key_name: holdfast
  supports_tools: true
  supports_schema: true
  vision: true
  responses: true
"""
HOME.mkdir(parents=True, exist_ok=True)
(HOME / "extra-openai-models.yaml").write_text(MODELS.format(url=URL))
(HOME / "keys.json").write_text(json.dumps({"holdfast": KEY}))

import llm  # noqa: E402  It reads its settings when it is imported.


async def play(case: Case, seen: Seen) -> None:
    await asyncio.to_thread(_play, case, seen)


def _play(case: Case, seen: Seen) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return carry_out(seen, city)

    conversation = llm.get_model(case.surface).conversation()
    for prompt in case.prompts:
        if case.offers_tool:
            chain = conversation.chain(prompt, tools=[get_weather], chain_limit=MAX_STEPS, stream=case.stream)
            seen.text = "".join(chain)
            return
        more = {}
        if case.name == "structured":
            more["schema"] = VERDICT_SCHEMA
        if case.name == "image":
            more["attachments"] = [llm.Attachment(type="image/png", content=base64.b64decode(PIXEL))]
        response = conversation.prompt(prompt, stream=case.stream, **more)
        if case.name == "abort":
            answer = iter(response)
            seen.text = next(answer)
            answer.close()
            return
        seen.text = response.text()
        said = response.response_json or {}
        cut = said.get("incomplete_details") or {}
        seen.ending = said.get("finish_reason") or cut.get("reason") or said.get("status")
    if case.name == "structured":
        seen.data = json.loads(seen.text)


if __name__ == "__main__":
    drive(play, "llm", "openai")
