// A connection that is lost while the model thinks: the client tries again by itself.
import { client, hello, tell } from "./client.mjs";

const { data, response } = await client.chat.completions.create({ model: "holdfast", messages: hello }).withResponse();
tell({ text: data.choices[0].message.content, replayed: response.headers.get("idempotency-replayed") });
