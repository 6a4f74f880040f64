// What drivers in Node share: cases from stdin, a JSON line each; what the client's user has seen, a JSON line each.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

export const url = process.env.HOLDFAST_URL;
export const key = process.env.HOLDFAST_KEY;
export const model = "holdfast";
export const maxSteps = 6;
export const image =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
export const weatherSchema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const verdictSchema = {
  type: "object",
  properties: { verdict: { type: "string" } },
  required: ["verdict"],
  additionalProperties: false,
};

export function getWeather(seen, city) {
  seen.executed.push(city);
  return "Rain, 8 degrees";
}

export const offersTool = (name) => ["client_tool", "both", "cut_call"].includes(name);
export const prompts = (name) => (name === "next_turn" ? ["Hello?", "And now?"] : ["Hello?"]);

/** Say which versions these are, then play every case that comes. */
export async function drive(play, ...packages) {
  const require = createRequire(import.meta.url);
  const versions = packages.map((name) => [name, require(`./node_modules/${name}/package.json`).version]);
  console.log(JSON.stringify(Object.fromEntries(versions)));
  // What a client throws behind its user's back must not take the driver with it.
  process.on("unhandledRejection", (error) => console.error("unhandled:", error));
  for await (const line of createInterface({ input: process.stdin })) {
    const seen = { text: "", ending: null, error: null, executed: [], shown: [], data: null };
    try {
      await play(JSON.parse(line), seen);
    } catch (error) {
      console.error(error);
      seen.error = `${error.name}: ${error.message}`;
    }
    console.log(JSON.stringify(seen));
  }
}
