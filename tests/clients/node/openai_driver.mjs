// The official `openai` package: `runTools` and a loop by hand, helpers for structured answers.
import OpenAI from "openai";
import { drive, getWeather, image, key, maxSteps, model, offersTool, prompts, url, verdictSchema, weatherSchema } from "./driver.mjs";

const client = new OpenAI({ baseURL: url, apiKey: key });
const chatTool = { type: "function", function: { name: "get_weather", parameters: weatherSchema } };
const responsesTool = { type: "function", name: "get_weather", parameters: weatherSchema, strict: true };

async function chatOnce(stream, name, seen, request) {
  if (!stream) {
    const choice = (await client.chat.completions.create(request)).choices[0];
    [seen.text, seen.ending] = [choice.message.content ?? "", choice.finish_reason];
    return choice.message;
  }
  // `runner` folds the chunks as the documentation shows it.
  const runner = client.chat.completions.stream(request);
  for await (const chunk of runner) {
    if (name === "abort" && chunk.choices[0]?.delta?.content) {
      seen.text = chunk.choices[0].delta.content;
      runner.abort();
      return null;
    }
  }
  const choice = (await runner.finalChatCompletion()).choices[0];
  [seen.text, seen.ending] = [choice.message.content ?? "", choice.finish_reason];
  return choice.message;
}

async function chat({ name, stream }, seen) {
  const more = offersTool(name) ? { tools: [chatTool] } : {};
  if (name === "structured") {
    more.response_format = { type: "json_schema", json_schema: { name: "verdict", schema: verdictSchema, strict: true } };
  }
  const messages = [];
  for (const prompt of prompts(name)) {
    const parts = [{ type: "text", text: prompt }, { type: "image_url", image_url: { url: image } }];
    messages.push({ role: "user", content: name === "image" ? parts : prompt });
    for (let step = 0; step < maxSteps; step++) {
      const said = await chatOnce(stream, name, seen, { model, messages, ...more });
      if (said === null) return;
      messages.push(said);
      if (!said.tool_calls?.length) break;
      for (const call of said.tool_calls) {
        const content = getWeather(seen, JSON.parse(call.function.arguments).city);
        messages.push({ role: "tool", tool_call_id: call.id, content });
      }
    }
  }
  if (name === "structured") seen.data = JSON.parse(seen.text);
}

async function respondOnce(stream, name, seen, request) {
  if (!stream) return client.responses.create(request);
  const events = await client.responses.create({ ...request, stream: true });
  let response = null;
  for await (const event of events) {
    if (name === "abort" && event.type === "response.output_text.delta") {
      seen.text = event.delta;
      events.controller.abort();
      return null;
    }
    if (["response.completed", "response.incomplete", "response.failed"].includes(event.type)) response = event.response;
  }
  return response;
}

async function respond({ name, stream }, seen) {
  const more = offersTool(name) ? { tools: [responsesTool] } : {};
  if (name === "structured") {
    more.text = { format: { type: "json_schema", name: "verdict", schema: verdictSchema, strict: true } };
  }
  const input = [];
  for (const prompt of prompts(name)) {
    const content = [{ type: "input_text", text: prompt }];
    if (name === "image") content.push({ type: "input_image", image_url: image, detail: "auto" });
    input.push({ role: "user", content });
    for (let step = 0; step < maxSteps; step++) {
      const response = await respondOnce(stream, name, seen, { model, input, ...more });
      if (response === null) return;
      const messages = response.output.filter((item) => item.type === "message");
      seen.text = messages.flatMap((item) => item.content).map((part) => part.text).join("");
      seen.ending = response.incomplete_details?.reason ?? response.status;
      seen.shown.push(...response.output.filter((item) => item.type === "mcp_call").map((item) => item.name));
      if (response.status === "failed") throw new Error(response.error.message);
      input.push(...response.output);
      const calls = response.output.filter((item) => item.type === "function_call");
      for (const call of calls) {
        const output = getWeather(seen, JSON.parse(call.arguments).city);
        input.push({ type: "function_call_output", call_id: call.call_id, output });
      }
      if (!calls.length) break;
    }
  }
  if (name === "structured") seen.data = JSON.parse(seen.text);
}

await drive((wanted, seen) => (wanted.surface === "chat" ? chat : respond)(wanted, seen), "openai");
