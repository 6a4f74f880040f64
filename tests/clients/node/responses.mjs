// Responses: a stream, the helper, a call and its result, the background resumed, a failure.
import { client, parameters, tell } from "./client.mjs";

const request = { model: "holdfast", input: "Hello?" };
const types = [];
let text = "";
for await (const event of await client.responses.create({ ...request, stream: true })) {
  types.push(event.type);
  if (event.type === "response.output_text.delta") text += event.delta;
}

const tools = [{ type: "function", name: "get_weather", description: "Weather.", parameters, strict: true }];
const asked = await client.responses.stream({ ...request, tools }).finalResponse();
const call = asked.output.find((item) => item.type === "function_call");
const answered = await client.responses.create({
  model: "holdfast",
  tools,
  previous_response_id: asked.id,
  input: [{ type: "function_call_output", call_id: call.call_id, output: "Rain" }],
});

const whole = [];
for await (const event of await client.responses.create({ ...request, stream: true, background: true })) {
  whole.push(event);
}
const id = whole[0].response.id;
const rest = [];
for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 4 })) rest.push(event);

const failed = [];
for await (const event of await client.responses.create({ ...request, stream: true })) failed.push(event);

tell({
  streamed: { text, first: types[0], last: types.at(-1) },
  call: { name: call.name, arguments: call.arguments },
  answered: { text: answered.output_text, status: answered.status },
  resumed: {
    same: JSON.stringify(rest) === JSON.stringify(whole.slice(5)),
    count: rest.length,
    text: rest.at(-1).response.output_text ?? null,
  },
  failed: {
    last: failed.at(-1).type,
    errors: failed.filter((event) => event.type === "error").length,
    status: failed.at(-1).response.status,
    message: failed.at(-1).response.error.message,
    text: failed.at(-1).response.output[0].content[0].text,
  },
});
