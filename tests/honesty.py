"""The honesty matrix: what becomes of every fault on every surface, as a table (U8-U16, C18, R2).

`tests/contract/test_honesty.py` plays it against a real server, and `python -m tests.honesty` writes docs/honesty.md
from it; so the document cannot say what the server does not do.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.testing import Fault, FaultName, Reply, tool_call

TEXT = "One two three four five."
CALL = tool_call("write_file", path="notes.txt", content="All that glitters is not gold. " * 4)
DOCUMENT = Path(__file__).parent.parent / "docs" / "honesty.md"

ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    529: "overloaded_error",
}
Finish = Literal["stop", "length", "content_filter", "error"]
Tries = int


@dataclass(frozen=True)
class Case:
    """One fault, and the only right way to tell it."""

    fault: FaultName
    n: int | None = None
    text: str = ""
    """What the client must have received, to the letter."""
    outcome: str = "incomplete"
    reason: str | None = "stream_interrupted"
    finish: Finish = "length"
    tries: Tries = 1
    status: int = 200
    """Of a plain answer."""
    kind: str | None = None
    """The type of the error, where it is told as one."""
    says_nothing: bool = False
    """The model says nothing before it calls its tool, or is cut off."""

    @property
    def name(self) -> str:
        number = "" if self.n is None else f"-{self.n}"
        return f"{self.fault}{number}{'-mute' if self.says_nothing else ''}"

    @property
    def reply(self) -> Reply:
        calls = (CALL,) if "tool_call" in self.fault else ()
        return Reply(text="" if self.says_nothing else TEXT, calls=calls, fault=Fault(self.fault, self.n))

    @property
    def response_status(self) -> str:
        """Of a response."""
        return {"completed": "completed", "incomplete": "incomplete", "failed": "failed"}[self.outcome]

    @property
    def stop_reason(self) -> str | None:
        """Of a message; None: an error stands in its place."""
        if self.outcome == "completed":
            return "end_turn"
        return {"max_output_tokens": "max_tokens", "content_filter": "refusal"}.get(self.reason or "")

    @property
    def message_status(self) -> int:
        """Of a plain message: half an answer is none there, and a provider that is overloaded has a number."""
        if self.stop_reason is not None:
            return 200
        if (self.fault, self.n) == ("status", 529):
            return 529
        return self.status if self.status != 200 else 502

    @property
    def message_kind(self) -> str | None:
        """The type of the error, in Anthropic's words."""
        return None if self.stop_reason is not None else ANTHROPIC_KINDS[self.message_status]

    @property
    def description(self) -> str:
        kind = Fault(self.fault, self.n).description
        return f"{kind}; it had said nothing else" if self.says_nothing else kind


def whole(fault: FaultName, n: int | None = None, tries: Tries = 1) -> Case:
    """It looks like trouble, and the answer is whole all the same."""
    return Case(fault, n, TEXT, "completed", None, "stop", tries)


def lost(fault: FaultName, n: int | None = None, text: str = "One two three") -> Case:
    """The connection is lost after text: partial, and never tried again (U12)."""
    return Case(fault, n, text)


def gone(fault: FaultName, n: int | None = None) -> Case:
    """The connection is lost before the first delta: tried twice more (U8), then failed."""
    return Case(fault, n, "", "failed", "upstream_disconnected", "error", 3, 502, "server_error")


def refused(
    fault: FaultName,
    n: int | None = None,
    tries: Tries = 1,
    text: str = "",
    *,
    status: int = 502,
    kind: str = "server_error",
) -> Case:
    """The provider says no (U9)."""
    return Case(fault, n, text, "failed", "upstream_error", "error", tries, status, kind)


WARNING = "Stream stalled mid tool-call (write_file): the action was not carried out."

MATRIX: tuple[Case, ...] = (
    whole("none"),
    lost("die_after"),
    gone("die_after", 0),
    lost("reset"),
    gone("reset", 0),
    lost("half_close"),
    gone("half_close", 0),
    lost("eof"),
    gone("eof", 0),
    lost("cut_frame"),
    gone("cut_frame", 0),
    lost("stall"),
    gone("stall", 0),
    lost("stall_with_comments"),
    gone("stall_with_comments", 0),
    lost("cut_tool_call", text=f"{TEXT}\n\n{WARNING}"),
    lost("stall_tool_call", text=f"{TEXT}\n\n{WARNING}"),
    Case("cut_tool_call", text=WARNING, says_nothing=True),
    Case("stall_tool_call", text=WARNING, says_nothing=True),
    whole("no_terminator"),
    whole("hang_after_finish"),
    Case("truncated", text=TEXT, reason="max_output_tokens"),
    Case("truncated", reason="max_output_tokens", finish="error", status=502, kind="server_error", says_nothing=True),
    Case("content_filter", text=TEXT, reason="content_filter", finish="content_filter"),
    Case("refusal", text=TEXT, reason="content_filter", finish="content_filter"),
    refused("error_event"),
    refused("error_event", 2, text="One two"),
    refused("limit_event", status=429, kind="rate_limit_error"),
    refused("limit_event", 2, text="One two", status=429, kind="rate_limit_error"),
    gone("lost_event"),
    lost("lost_event", 2, text="One two"),
    whole("garbage"),
    whole("slow", 5),
    refused("status", 400, status=400, kind="invalid_request_error"),
    refused("status", 401, status=401, kind="authentication_error"),
    refused("status", 403, status=403, kind="authentication_error"),
    refused("status", 404, status=404, kind="invalid_request_error"),
    refused("status", 413, status=413, kind="invalid_request_error"),
    refused("status", 422, kind="invalid_request_error"),
    refused("status", 429, tries=3, status=429, kind="rate_limit_error"),
    refused("status", 500, tries=3),
    refused("status", 503, tries=3),
    refused("status", 529, tries=3),
    refused("redirect"),
    whole("no_streaming", tries=2),
    whole("only_plain"),
    gone("stall_before_headers"),
    gone("stall_after_headers"),
    gone("reset_before_headers"),
    gone("not_http"),
)
CASES = {case.name: case for case in MATRIX}


def render_document() -> str:
    """docs/honesty.md."""
    lines = [_ABOUT]
    for case in MATRIX:
        why = case.outcome if case.reason is None else f"{case.outcome}, {case.reason}"
        text = "all of it" if case.text == TEXT else f"“{case.text}”".replace("\n\n", " ¶ ") if case.text else "none"
        message = f"`{case.stop_reason}`" if case.stop_reason else f"{case.message_status} `{case.message_kind}`"
        lines.append(
            f"| {case.description} | {case.tries} | `{case.finish}` | {case.status} | `{case.response_status}` "
            f"| {message} | {why} | {f'`{case.kind}`' if case.kind else ''} | {text} |"
        )
    return "\n".join([*lines, _IN_THE_END])


_ABOUT = f"""\
# What becomes of every fault

A model's stream can break in many ways. This table says what a client of Holdfast is told about each of them. It is
made from the test that plays every row against a real server, with a provider of each of the three wire protocols,
streamed and plain, over chat completions, responses, messages and runs, live and replayed; so it cannot say what the
server does not do.
`python -m tests.honesty` writes it anew.

The provider means to say “{TEXT}”; in the rows about tool calls it then calls `write_file`. The
server tries a failed call twice more, and only while the client has seen nothing.

- **tries**: how often the provider is asked.
- **chat**: the `finish_reason` of the stream; `error` comes with a top-level `error` object, so that SDKs raise, and
  once more in a frame of its own, for clients that look only there.
- **plain**: the HTTP status of an answer that is not streamed, of chat completions and of responses.
- **responses**: the `status` of the response, streamed or stored.
- **messages**: the `stop_reason` of an answer of Anthropic's Messages API; or the HTTP status and `type` of the error:
  a stream has it as an `error` event after the text, and as its own status where there was none; a plain answer has
  the text in the error.
- **why**: `outcome` and `reason`, in the extras, in the runs API and in the metrics.
- **error**: the `type` of the error on chat completions and responses, wherever there is one.
- **text**: what the client has, to the letter; what is saved is the same.

| the provider … | tries | chat | plain | responses | messages | why | error | text |
|---|--:|---|--:|---|---|---|---|---|"""

_IN_THE_END = """
In no row is half a tool call carried out, in no row does a broken answer end with `stop`, `completed` or `end_turn`,
and after every row the connection to the provider is closed or, when the answer was whole, free for the next call.
"""


if __name__ == "__main__":
    DOCUMENT.write_text(render_document(), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT} is written.\n")
