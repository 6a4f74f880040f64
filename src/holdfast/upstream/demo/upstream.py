"""The built-in demo model: works offline and says so, streams, reasons a little, and calls the real tools when asked.

Implements `Upstream` beside the HTTP one; `router` puts it behind its name. What it says is `script`'s; here it is only
spoken.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.events import Answered, ArgumentsAdded, Delta, ReasoningAdded, TextAdded, ToolCallBegan
from holdfast.ids import make_call_id
from holdfast.messages import Finish, Usage
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.demo.script import DemoTurn, count_input_tokens, make_turn
from holdfast.upstream.port import ModelCall

DEMO_MODEL: Final = "demo"
"""Its name, where others have `provider/model`."""
WORD_SECONDS: Final = 0.012

_PIECE = re.compile(r"\S+\s*|\s+")


class DemoUpstream:
    """Speaks a word every `word_seconds`; 0: as fast as it is listened to."""

    def __init__(self, word_seconds: float = WORD_SECONDS) -> None:
        self._word_seconds = word_seconds

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        """Think, speak, call tools."""
        turn = make_turn(call)
        text, finish = _cut_at_stop(turn.text, call.options.stop)
        limit = call.options.max_output_tokens
        produced = reasoned = 0
        for delta in _deltas(msgspec.structs.replace(turn, text=text)):
            if limit is not None and produced >= limit:
                finish = "length"
                break
            if not isinstance(delta, ToolCallBegan):
                produced += 1
            reasoned += isinstance(delta, ReasoningAdded)
            await asyncio.sleep(self._word_seconds * turn.pace)
            await send(sink, [delta])
        else:
            finish = "tool_calls" if turn.calls else finish
        usage = Usage(input_tokens=count_input_tokens(call), output_tokens=produced, reasoning_tokens=reasoned)
        await send(sink, [Answered(finish=finish, model=DEMO_MODEL, usage=usage)])

    async def aclose(self) -> None:
        """Nothing to close."""


def _deltas(turn: DemoTurn) -> Iterator[Delta]:
    for piece in _PIECE.findall(turn.reasoning):
        yield ReasoningAdded(text=piece)
    for piece in _PIECE.findall(turn.text):
        yield TextAdded(text=piece)
    for index, call in enumerate(turn.calls):
        yield ToolCallBegan(index=index, call_id=make_call_id(), name=call.name)
        arguments = msgspec.json.encode(call.arguments).decode()
        for start in range(0, len(arguments), 12):
            yield ArgumentsAdded(index=index, text=arguments[start : start + 12])


def _cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, Finish]:
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return (text[: min(places)] if places else text), "stop"
