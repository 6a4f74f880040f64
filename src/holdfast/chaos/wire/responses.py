"""A scripted reply as OpenAI Responses. Implements `format.ReplyFormat`."""

from collections.abc import Iterator
from typing import Any

from holdfast.chaos.reply import Reply, pieces_of
from holdfast.chaos.wire.format import ReplyFrame, argument_pieces, call_id_of, encode_event, openai_error
from holdfast.messages import Finish


class ResponsesFormat:
    """OpenAI Responses."""

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[ReplyFrame]:
        """Events, numbered; the last is `response.completed` or `response.incomplete`."""
        number = -1

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal number
            number += 1
            return encode_event({"type": kind, "sequence_number": number, **fields})

        response = {**self.plain(reply, model), "status": "in_progress", "output": [], "usage": None}
        response["incomplete_details"] = None
        yield "open", event("response.created", response=response)
        yield "open", event("response.in_progress", response=response)
        items = self._output(reply)
        shown: list[dict[str, Any]] = []
        for place, item in enumerate(items):
            where = {"output_index": place, "item_id": item["id"]}
            match item["type"]:
                case "reasoning":
                    yield "open", event("response.output_item.added", output_index=place, item={**item, "summary": []})
                    part = {"summary_index": 0, **where}
                    empty = {"type": "summary_text", "text": ""}
                    yield "open", event("response.reasoning_summary_part.added", part=empty, **part)
                    for piece in pieces_of(reply.reasoning):
                        yield "reasoning", event("response.reasoning_summary_text.delta", delta=piece, **part)
                    text = reply.whole_reasoning
                    yield "close", event("response.reasoning_summary_text.done", text=text, **part)
                    yield "close", event("response.reasoning_summary_part.done", part=item["summary"][0], **part)
                    yield "close", event("response.output_item.done", output_index=place, item=item)
                case "message":
                    yield from self._message_frames(event, reply, item, where)
                case _:
                    shown.append(item)
                    if len(shown) == len(reply.calls):
                        yield from self._call_frames(event, reply, items)
        last = self.plain(reply, model)
        yield "finish", event(f"response.{last['status']}", response=last)

    def _message_frames(
        self, event: Any, reply: Reply, item: dict[str, Any], where: dict[str, Any]
    ) -> Iterator[ReplyFrame]:
        yield (
            "open",
            event("response.output_item.added", output_index=where["output_index"], item={**item, "content": []}),
        )
        content = item["content"][0]
        said, key = ("refusal", "refusal") if content["type"] == "refusal" else ("output_text", "text")
        part = {"content_index": 0, **where}
        more: dict[str, Any] = {"logprobs": []} if said == "output_text" else {}
        yield "open", event("response.content_part.added", part={**content, key: ""}, **part)
        for piece in pieces_of(reply.text_after if item["id"] == "msg_after" else reply.text):
            yield "text", event(f"response.{said}.delta", delta=piece, **more, **part)
        yield "close", event(f"response.{said}.done", **{key: content[key]}, **more, **part)
        yield "close", event("response.content_part.done", part=content, **part)
        yield "close", event("response.output_item.done", output_index=where["output_index"], item=item)

    def _call_frames(self, event: Any, reply: Reply, items: list[dict[str, Any]]) -> Iterator[ReplyFrame]:
        calls = [(place, item) for place, item in enumerate(items) if item["type"] == "function_call"]
        begun: set[int] = set()
        for index, piece in argument_pieces(reply):
            place, item = calls[index]
            if index not in begun:
                begun.add(index)
                opened = {**item, "arguments": "", "status": "in_progress"}
                yield "call", event("response.output_item.added", output_index=place, item=opened)
            delta = "response.function_call_arguments.delta"
            yield "arguments", event(delta, output_index=place, item_id=item["id"], delta=piece)
        for place, item in calls:
            whole = {"output_index": place, "item_id": item["id"], "name": item["name"], "arguments": item["arguments"]}
            yield "close", event("response.function_call_arguments.done", **whole)
            yield "close", event("response.output_item.done", output_index=place, item=item)

    def _output(self, reply: Reply) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        if reply.reasoning:
            summary = [{"type": "summary_text", "text": reply.whole_reasoning}]
            reasoning = {"id": "rs_0", "type": "reasoning", "summary": summary}
            output.append({**reasoning, "encrypted_content": reply.seal} if reply.seal else reasoning)
        if reply.text:
            output.append(self._message("msg_0", reply, reply.text))
        for index, call in enumerate(reply.calls):
            output.append(
                {
                    "id": f"fc_{index}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": call_id_of(call, index),
                    "name": call.name,
                    "arguments": call.arguments,
                }
            )
        if reply.text_after:
            output.append(self._message("msg_after", reply, reply.text_after))
        return output

    def _message(self, name: str, reply: Reply, said: str | tuple[str, ...]) -> dict[str, Any]:
        text = "".join(pieces_of(said))
        content: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        if reply.ended == "refusal":
            content = {"type": "refusal", "refusal": text}
        return {"id": name, "type": "message", "role": "assistant", "status": "completed", "content": [content]}

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """A `response`."""
        reasons: dict[Finish, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
        reason = reasons.get(reply.ended)
        usage = reply.usage
        return {
            "id": "resp_scripted",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "error": None,
            "model": model,
            "output": self._output(reply),
            "usage": {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.total_tokens,
            },
        }

    def error(self, status: int, message: str) -> dict[str, Any]:
        """OpenAI's envelope."""
        return openai_error(status, message)

    def error_event(self, message: str) -> bytes:
        """An `error` event."""
        return encode_event({"type": "error", "error": {"message": message, "type": "server_error", "code": None}})

    def limit_event(self, message: str) -> bytes:
        """A response that failed."""
        error = {"code": "rate_limit_exceeded", "message": message}
        response = {"id": "resp_scripted", "object": "response", "status": "failed", "error": error, "output": []}
        return encode_event({"type": "response.failed", "response": response})
