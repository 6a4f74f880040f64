// The official `@anthropic-ai/sdk`: `messages.stream` and a loop by hand around tools.
import Anthropic from "@anthropic-ai/sdk";
import { drive, getWeather, image, key, maxSteps, model, offersTool, prompts, url, verdictSchema, weatherSchema } from "./driver.mjs";

const client = new Anthropic({ baseURL: url.replace(/\/v1$/, ""), apiKey: key });
const tool = { name: "get_weather", input_schema: weatherSchema };
const picture = { type: "image", source: { type: "base64", media_type: "image/png", data: image.split(",")[1] } };

async function once(stream, name, seen, request) {
  if (!stream) return client.messages.create(request);
  const events = client.messages.stream(request);
  if (name === "abort") {
    for await (const event of events) {
      if (event.type === "content_block_delta" && event.delta.type === "text_delta") {
        seen.text = event.delta.text;
        events.abort();
        return null;
      }
    }
  }
  return events.finalMessage();
}

async function play({ name, stream }, seen) {
  const more = offersTool(name) ? { tools: [tool] } : {};
  if (name === "structured") more.output_config = { format: { type: "json_schema", schema: verdictSchema } };
  const messages = [];
  for (const prompt of prompts(name)) {
    const text = { type: "text", text: prompt };
    messages.push({ role: "user", content: name === "image" ? [text, picture] : prompt });
    for (let step = 0; step < maxSteps; step++) {
      const said = await once(stream, name, seen, { model, max_tokens: 1000, messages, ...more });
      if (said === null) return;
      seen.text = said.content.filter((block) => block.type === "text").map((block) => block.text).join("");
      seen.ending = said.stop_reason;
      seen.shown.push(...said.content.filter((block) => block.type === "mcp_tool_use").map((block) => block.name));
      messages.push({ role: "assistant", content: said.content });
      const calls = said.content.filter((block) => block.type === "tool_use");
      if (!calls.length) break;
      const results = calls.map((call) => ({
        type: "tool_result",
        tool_use_id: call.id,
        content: getWeather(seen, call.input.city),
      }));
      messages.push({ role: "user", content: results });
    }
  }
  if (name === "structured") seen.data = JSON.parse(seen.text);
}

await drive(play, "@anthropic-ai/sdk");
