"""What a model is told of earlier answers that are not whole (R2). Pure.

Only the request to the model has these notes: what is stored and what clients are shown has the outcome instead. Sits
on the vocabulary.
"""

from collections.abc import Iterable
from typing import Final

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
    shown: list[Message] = []
    for said in messages:
        if not isinstance(said, AssistantMessage) or not said.outcome:
            shown.append(said)
        elif said.parts or (shown and not isinstance(shown[-1], AssistantMessage)):
            shown.append(_with_note(said))
        # Else there is neither an answer nor what it would have answered, and no turn to tell of it.
    return shown


def _with_note(said: AssistantMessage) -> AssistantMessage:
    why = _WHY.get(said.reason or "", "it ended early")
    words = [(place, part) for place, part in enumerate(said.parts) if isinstance(part, Text) and part.text.strip()]
    if not words:
        # Thoughts that led to nothing are left out: a provider may refuse them without the words they were for.
        note = Text(text=f"[This answer was cut off before its first word: {why}.]")
        return AssistantMessage(parts=(note, *said.tool_calls))
    # In the part that has the last words: a protocol that keeps parts apart would make two messages of two.
    place, last = words[-1]
    noted = Text(text=f"{last.text}\n\n[This answer was cut off here: {why}.]")
    return AssistantMessage(parts=(*said.parts[:place], noted, *said.parts[place + 1 :]))
