"""Everything that can go wrong between a model and whoever reads it: the one table of faults.

The scripted provider acts them out, `--chaos` offers them to anyone (T6), tests and documents name them by these words.
`reply`, `steps` and `models` sit above; knows no protocol and no sockets.
"""

import re
from typing import Final, Literal, get_args

import msgspec

FaultName = Literal[
    "none",
    "die_after",
    "reset",
    "half_close",
    "eof",
    "cut_frame",
    "stall",
    "stall_with_comments",
    "cut_tool_call",
    "stall_tool_call",
    "no_terminator",
    "hang_after_finish",
    "truncated",
    "content_filter",
    "refusal",
    "error_event",
    "limit_event",
    "lost_event",
    "garbage",
    "slow",
    "status",
    "redirect",
    "no_streaming",
    "only_plain",
    "stall_before_headers",
    "stall_after_headers",
    "reset_before_headers",
    "not_http",
]


class FaultKind(msgspec.Struct, frozen=True):
    """What a fault does, and what its number means."""

    description: str
    number: str = ""
    """What `n` counts; empty: it has no number."""
    default: int = 0


_CHUNKS: Final = "chunks of text first"
_PIECES: Final = "pieces of the arguments first"

FAULTS: Final[dict[FaultName, FaultKind]] = {
    "none": FaultKind("answers as it should"),
    "die_after": FaultKind("closes the connection in the middle of the body", _CHUNKS, 3),
    "reset": FaultKind("resets the connection (RST) in the middle of the body", _CHUNKS, 3),
    "half_close": FaultKind("shuts down its sending side in the middle of the body and keeps the socket", _CHUNKS, 3),
    "eof": FaultKind("ends the body cleanly without a finish reason", _CHUNKS, 3),
    "cut_frame": FaultKind("closes the connection in the middle of a frame", _CHUNKS, 3),
    "stall": FaultKind("falls silent and keeps the connection open", _CHUNKS, 3),
    "stall_with_comments": FaultKind("sends nothing but comments from then on", _CHUNKS, 3),
    "cut_tool_call": FaultKind("closes the connection while a tool call's arguments arrive", _PIECES, 2),
    "stall_tool_call": FaultKind("falls silent while a tool call's arguments arrive", _PIECES, 2),
    "no_terminator": FaultKind("ends the body after the finish reason, without its terminator"),
    "hang_after_finish": FaultKind("falls silent after the finish reason, without its terminator"),
    "truncated": FaultKind("stops at its output limit"),
    "content_filter": FaultKind("is stopped by a content filter"),
    "refusal": FaultKind("refuses to answer"),
    "error_event": FaultKind("reports a final error inside the stream", _CHUNKS, 0),
    "limit_event": FaultKind("reports inside the stream that its rate limit is reached", _CHUNKS, 0),
    "lost_event": FaultKind("reports inside the stream that its own connection was lost", _CHUNKS, 0),
    "garbage": FaultKind("sends a frame that is not JSON, then goes on", _CHUNKS, 1),
    "slow": FaultKind("waits before every chunk", "milliseconds", 300),
    "status": FaultKind("answers with an HTTP error", "the status", 500),
    "redirect": FaultKind("redirects to another host"),
    "no_streaming": FaultKind("says that it cannot stream; plain requests work"),
    "only_plain": FaultKind("answers with a plain body although asked to stream"),
    "stall_before_headers": FaultKind("takes the request and never answers"),
    "stall_after_headers": FaultKind("sends its headers, and then nothing but comments"),
    "reset_before_headers": FaultKind("takes the request and resets the connection"),
    "not_http": FaultKind("answers with something that is not HTTP"),
}

STATUSES: Final[dict[int, str]] = {
    400: "The request was malformed.",
    401: "Incorrect API key provided.",
    403: "This key may not use this model.",
    404: "The model does not exist.",
    413: "The body is over the limit of this endpoint.",
    422: "The request cannot be processed.",
    429: "Rate limit reached; try again later.",
    500: "The server had an error while processing the request.",
    503: "The model is overloaded.",
    529: "Overloaded.",
}


class Fault(msgspec.Struct, frozen=True):
    """One fault. `n` is what the table says; None: the table's default."""

    name: FaultName = "none"
    n: int | None = None
    retry_after: str | None = None
    """The header sent with `status`; None: `1` with 429, else none."""

    @property
    def number(self) -> int:
        """`n`, or the table's default."""
        return FAULTS[self.name].default if self.n is None else self.n

    @property
    def description(self) -> str:
        """What it does, in words, number included."""
        kind = FAULTS[self.name]
        if self.name == "status":
            return f"answers with HTTP {self.number}: {STATUSES.get(self.number, 'an error.')}"
        return f"{kind.description} ({kind.number}: {self.number})" if kind.number else kind.description


NO_FAULT: Final = Fault()
_WORDS = re.compile(r"(?P<name>[a-z_]+|(?=\d))(?:[\s\-:(]*(?P<n>\d+)\)?)?", re.IGNORECASE)


def parse_fault(words: str) -> Fault:
    """`reset-2`, `reset 2`, `reset(2)`, `reset`, `429`, `status 429`.

    Raises:
        ValueError: there is no such fault; the message lists those there are.
    """
    match = _WORDS.fullmatch(words.strip())
    name = match["name"].lower() if match else ""
    n = int(match["n"]) if match and match["n"] else None
    if match and not name and n is not None and 400 <= n <= 599:
        return Fault("status", n)
    for known in get_args(FaultName):
        if name == known:
            return Fault(known, n)
    raise ValueError(f"There is no fault {words.strip()!r}. There are: {', '.join(FAULTS)}, or a status such as 429.")
