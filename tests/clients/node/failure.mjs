// A failure before any text, and one in the middle of a stream.
import { client, failureOf, hello, tell } from "./client.mjs";

const request = { model: "holdfast", messages: hello };
const plain = await failureOf(client.chat.completions.create(request));

let text = "";
const streamed = await failureOf(
  (async () => {
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
  })(),
);
const helped = await failureOf(client.chat.completions.stream(request).finalChatCompletion());

tell({ plain, streamed, text, helped });
