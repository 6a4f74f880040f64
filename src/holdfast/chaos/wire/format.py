"""What one provider's words must be able to say, and what the three have in common.

`chat_completions`, `responses` and `anthropic` implement it, `formats` above is their table. Sits on `reply`; no I/O.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import msgspec

from holdfast.chaos.reply import Reply, ScriptedCall

FrameKind = Literal["open", "reasoning", "text", "call", "arguments", "close", "finish", "end"]
"""`finish` carries the finish reason, `end` is what comes after it; faults count the others."""
ReplyFrame = tuple[FrameKind, bytes]


class ReplyFormat(Protocol):
    """One provider's words."""

    def frames(self, reply: Reply, model: str, usage: bool) -> Iterator[ReplyFrame]:
        """The body of a streamed answer; `usage`: the client asked for a usage chunk."""
        ...

    def plain(self, reply: Reply, model: str) -> dict[str, Any]:
        """The body of a plain answer."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of a response that is not 2xx."""
        ...

    def error_event(self, message: str) -> bytes:
        """An error inside a stream, without a status."""
        ...

    def limit_event(self, message: str) -> bytes:
        """An error inside a stream, of a rate limit that is reached."""
        ...


def _thirds(text: str) -> tuple[str, ...]:
    step = max(1, -(-len(text) // 3))
    return tuple(text[start : start + step] for start in range(0, len(text), step)) or ("",)


def call_id_of(call: ScriptedCall, index: int) -> str:
    """Its own, else one by its number."""
    return call.id or f"call_{index}"


def argument_pieces(reply: Reply) -> Iterator[tuple[int, str]]:
    """The arguments of all calls, piece by piece, in the order they are sent."""
    cut = [_thirds(call.arguments) for call in reply.calls]
    if not reply.interleave:
        yield from ((index, piece) for index, pieces in enumerate(cut) for piece in pieces)
        return
    for turn in range(max(map(len, cut), default=0)):
        yield from ((index, pieces[turn]) for index, pieces in enumerate(cut) if turn < len(pieces))


def encode_data(payload: Any) -> bytes:
    """A frame without a name."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def encode_event(payload: dict[str, Any]) -> bytes:
    """A frame named by its type."""
    return f"event: {payload['type']}\n".encode() + encode_data(payload)


def openai_error(status: int, message: str) -> dict[str, Any]:
    """The body of an error, as both of OpenAI's protocols have it."""
    types = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = types.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": f"scripted_{status}"}}
