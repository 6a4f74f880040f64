"""What a scripted provider is told to say: replies, and the tool calls in them.

The words of every script, in no provider's protocol. `wire` puts them into one, `steps` adds what goes wrong with them.
Sits on `faults`; knows no protocol and no sockets.
"""

import re
from typing import Any

import msgspec

from holdfast.chaos.faults import NO_FAULT, Fault
from holdfast.messages import Finish, Usage


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a reply makes."""

    name: str
    arguments: str = "{}"
    """As the model writes them; a stream sends them in pieces of about a third."""
    id: str = ""
    """Empty: `call_0`, `call_1` …"""


def tool_call(name: str, **arguments: Any) -> ScriptedCall:
    """A call with its arguments as JSON."""
    return ScriptedCall(name=name, arguments=msgspec.json.encode(arguments).decode())


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says to one request."""

    text: str | tuple[str, ...] = ""
    """A string is sent word by word, a tuple piece by piece."""
    reasoning: str | tuple[str, ...] = ""
    calls: tuple[ScriptedCall, ...] = ()
    text_after: str | tuple[str, ...] = ""
    """Text that comes after the tool calls have begun (U4)."""
    interleave: bool = False
    """The arguments of several calls come in turns (U2)."""
    seal: str = ""
    """What the provider wants back (U3): a thinking signature, encrypted reasoning, a thought signature on a call."""
    finish: Finish | None = None
    """None: `tool_calls` when there are calls, else `stop`."""
    stopped_by: str = ""
    """The stop sequence that ended it, for protocols that say so."""
    count: int = 0
    """The answer to somebody who asks how many tokens a request has."""
    usage: Usage = Usage(input_tokens=11, output_tokens=7)
    model: str = ""
    """The model the provider reports; empty: the one that was asked for."""
    delay_seconds: float = 0.0
    """Before each frame after the first. Zero: the whole body is written at once."""
    headers_delay_seconds: float = 0.0
    hold_after: int | None = None
    """Pause after so many chunks of text until the request is released; -1: before the headers."""
    fault: Fault = NO_FAULT

    @property
    def whole_text(self) -> str:
        """The text, joined."""
        return "".join(pieces_of(self.text)) + "".join(pieces_of(self.text_after))

    @property
    def whole_reasoning(self) -> str:
        """The reasoning, joined."""
        return "".join(pieces_of(self.reasoning))

    @property
    def ended(self) -> Finish:
        """The finish reason that is sent."""
        match self.fault.name:
            case "truncated":
                return "length"
            case "content_filter" | "refusal":
                return self.fault.name
            case _:
                return self.finish or ("tool_calls" if self.calls else "stop")


_WORD = re.compile(r"\s*\S+\s*?(?=\s|$)|\s+")


def pieces_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """A text as the pieces it is sent in."""
    return text if isinstance(text, tuple) else tuple(_WORD.findall(text))
