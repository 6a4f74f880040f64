// A tool of the client's own, there and back: by hand, and by the helper that carries tools out by itself.
import { client, hello, parameters, tell } from "./client.mjs";

const carriedOut = [];
const weather = ({ city }) => {
  carriedOut.push(city);
  return "Rain, 8 degrees";
};
const definition = { name: "get_weather", description: "The weather of a city.", parameters };
const tools = [{ type: "function", function: definition }];

const first = await client.chat.completions.stream({ model: "holdfast", messages: hello, tools }).finalChatCompletion();
const [call] = first.choices[0].message.tool_calls;
const result = { role: "tool", tool_call_id: call.id, content: weather(JSON.parse(call.function.arguments)) };
const second = await client.chat.completions.create({
  model: "holdfast",
  messages: [...hello, first.choices[0].message, result],
  tools,
});

const runner = client.chat.completions.runTools({
  model: "holdfast",
  messages: hello,
  stream: true,
  tools: [{ type: "function", function: { ...definition, function: weather, parse: JSON.parse } }],
});

tell({
  first: { finish: first.choices[0].finish_reason, name: call.function.name, arguments: call.function.arguments },
  second: { text: second.choices[0].message.content, finish: second.choices[0].finish_reason },
  runner: await runner.finalContent(),
  carriedOut,
});
