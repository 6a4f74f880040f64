// The Vercel AI SDK: `generateText` and `streamText` with its own provider for OpenAI (chat, responses) and the one for
// servers that are compatible with it.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { drive, getWeather, image, key, maxSteps, model, offersTool, prompts, url, verdictSchema, weatherSchema } from "./driver.mjs";

const openai = createOpenAI({ baseURL: url, apiKey: key });
const compatible = createOpenAICompatible({
  name: "holdfast",
  baseURL: url,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  chat: () => openai.chat(model),
  responses: () => openai.responses(model),
  compatible: () => compatible(model),
};

async function play({ name, surface, stream }, seen) {
  const leaving = new AbortController();
  const more = { stopWhen: stepCountIs(maxSteps), abortSignal: leaving.signal };
  if (offersTool(name)) {
    const execute = async ({ city }) => getWeather(seen, city);
    more.tools = { get_weather: tool({ description: "Weather.", inputSchema: jsonSchema(weatherSchema), execute }) };
  }
  if (name === "structured") more.output = Output.object({ schema: jsonSchema(verdictSchema) });
  const messages = [];
  for (const prompt of prompts(name)) {
    const content = [{ type: "text", text: prompt }];
    if (name === "image") content.push({ type: "image", image });
    messages.push({ role: "user", content });
    const request = { model: models[surface](), messages, ...more };
    const result = stream ? await readStream(name, seen, request, leaving) : await generateText(request);
    if (result === null) return;
    seen.text = await result.text;
    seen.ending = await result.finishReason;
    if (name === "structured") seen.data = await result.output;
    for (const step of await result.steps) {
      seen.shown.push(...step.toolCalls.filter((call) => call.providerExecuted).map((call) => call.toolName));
    }
    messages.push(...(await result.response).messages);
  }
}

async function readStream(name, seen, request, leaving) {
  const errors = [];
  const result = streamText({ ...request, onError: ({ error }) => errors.push(error) });
  for await (const part of result.fullStream) {
    if (name === "abort" && part.type === "text-delta") {
      seen.text = part.text;
      leaving.abort();
      return null;
    }
  }
  if (errors.length) throw errors[0];
  return result;
}

await drive(play, "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible");
