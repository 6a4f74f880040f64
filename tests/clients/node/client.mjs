// What every scenario shares: the official client, pointed at the server under test, and a way to tell what it saw.
import OpenAI, { APIError } from "openai";

export const client = new OpenAI({
  baseURL: process.env.HOLDFAST_URL,
  apiKey: process.env.HOLDFAST_KEY,
  maxRetries: Number(process.env.MAX_RETRIES ?? 0),
  timeout: 20_000,
});

export const hello = [{ role: "user", content: "Hello?" }];

export const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

/** Print what a scenario saw, as JSON, for the test that started it. */
export function tell(seen) {
  process.stdout.write(JSON.stringify(seen) + "\n");
}

/** What a promise was rejected with, if it is an error of the API; anything else is a bug in the scenario. */
export async function failureOf(promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof APIError) {
      return { name: error.constructor.name, status: error.status ?? null, message: error.message, code: error.code };
    }
    throw error;
  }
  return null;
}
