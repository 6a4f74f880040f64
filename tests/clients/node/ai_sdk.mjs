// The Vercel AI SDK on chat completions: text, a tool of the server's, one of its own, a cut answer, a failure.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, stepCountIs, streamText, tool } from "ai";
import { parameters, tell } from "./client.mjs";

const holdfast = createOpenAICompatible({
  name: "holdfast",
  baseURL: process.env.HOLDFAST_URL,
  apiKey: process.env.HOLDFAST_KEY,
  includeUsage: true,
});

async function read(more = {}) {
  const errors = [];
  const onError = ({ error }) => errors.push(error.message);
  const model = holdfast("holdfast");
  const result = streamText({ model, prompt: "Hello?", maxRetries: 0, onError, ...more });
  const seen = { text: "", reasoning: "", finish: null, errors };
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") seen.text += part.text;
    if (part.type === "reasoning-delta") seen.reasoning += part.text;
    if (part.type === "finish") seen.finish = part.finishReason;
  }
  return seen;
}

const carriedOut = [];
const get_weather = tool({
  description: "The weather of a city.",
  inputSchema: jsonSchema(parameters),
  execute: async ({ city }) => {
    carriedOut.push(city);
    return "Rain, 8 degrees";
  },
});

tell({
  text: await read(),
  servers: await read(),
  own: await read({ tools: { get_weather }, stopWhen: stepCountIs(3) }),
  cut: await read(),
  failed: await read(),
  carriedOut,
});
