"""What a model is told of earlier answers that are not whole (R2). Pure.

Only the request to the model has these notes: what is stored and what clients are shown has the outcome instead. Sits
on the vocabulary.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.messages import AssistantMessage, Message, Text

_WHY: Final = {
    "max_output_tokens": "the output limit was reached",
    "content_filter": "the model refused, or a content filter was applied",
    "max_turns": "the model's turns were used up before the task was done",
    "max_tool_calls": "the tool calls were used up before the task was done",
    "stream_interrupted": "the connection to the model was lost",
    "server_restart": "the server was restarted",
    "upstream_error": "the model's provider reported an error",
    "upstream_disconnected": "the connection to the model was lost",
    "internal": "the server had a problem",
    "user": "the user stopped it",
    "client_disconnect": "the user's connection was closed",
    "timeout": "a time limit was reached",
    "shutdown": "the server was shut down",
    "replaced": "the user sent a newer message instead of waiting",
}


def note_cuts(messages: Iterable[Message]) -> list[Message]:
    """Messages as a model is sent them: an answer that is not whole ends with a note that it was cut off, and why.

    In the answer's own message, so that turns still alternate. What became of its calls is told where they stand.
    """
    return [_with_note(said) if isinstance(said, AssistantMessage) and said.outcome else said for said in messages]


def _with_note(said: AssistantMessage) -> AssistantMessage:
    why = _WHY.get(said.reason or "", "it ended early")
    where = "here" if said.text.strip() else "before its first word"
    note = f"[This answer was cut off {where}: {why}.]"
    if not said.text.strip():
        return _unmarked(said, Text(text=note))
    last = said.parts[-1]
    if isinstance(last, Text):
        # One part with the words before it: protocols that keep parts apart would make two messages of it.
        return _unmarked(msgspec.structs.replace(said, parts=said.parts[:-1]), Text(text=f"{last.text}\n\n{note}"))
    return _unmarked(said, Text(text=note))


def _unmarked(said: AssistantMessage, last: Text) -> AssistantMessage:
    return AssistantMessage(parts=(*said.parts, last))
