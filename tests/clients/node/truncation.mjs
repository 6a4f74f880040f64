// An answer that stopped at its limit, and one whose model was lost: neither looks whole.
import { client, hello, tell } from "./client.mjs";

const request = { model: "holdfast", messages: hello };
const plain = await client.chat.completions.create(request);
const last = [];
for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) last.push(chunk);
const response = await client.responses.create({ model: "holdfast", input: "Hello?" });

tell({
  plain: plain.choices[0].finish_reason,
  streamed: last.at(-1).choices[0].finish_reason,
  response: { status: response.status, reason: response.incomplete_details?.reason, text: response.output_text },
});
