// A text answer: plain, streamed, through the stream helper; and the models.
import { client, hello, tell } from "./client.mjs";

const request = { model: "holdfast", messages: hello };
const { data: plain, response } = await client.chat.completions.create(request).withResponse();

let text = "";
const finishes = [];
for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
  if (chunk.choices[0].finish_reason) finishes.push(chunk.choices[0].finish_reason);
}

const helped = await client.chat.completions.stream(request).finalChatCompletion();
const models = await client.models.list();

tell({
  plain: { text: plain.choices[0].message.content, finish: plain.choices[0].finish_reason, usage: plain.usage },
  streamed: { text, finishes },
  helped: { text: helped.choices[0].message.content, finish: helped.choices[0].finish_reason },
  run: response.headers.get("x-holdfast-run-id"),
  request: plain._request_id,
  models: models.data.map((model) => model.id),
});
