"""What a model is shown: every tool call with its result right behind it, nothing asked twice (C11, C13). Pure.

A stored conversation may hold them otherwise: a message was posted before the client's results came, results were
sent again after a failure, or never. One such place would make a provider refuse the session for ever. Sits on the
vocabulary.
"""

from collections.abc import Sequence

from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage

NO_RESULT = "The client gave no result."


def pair_results(history: Sequence[Message], given: Sequence[Message]) -> list[Message]:
    """What came before and what is new, in an order that a model can be asked in.

    Of two results of a call the newer counts, and a call without one gets one. A result in the history whose call is
    gone is left out; one that is new stays, so that the provider can say what is wrong with it. A question that was
    never answered and is asked again, as SDKs do after a failure, is asked once: its empty answers go with it.
    """
    kept = len(history)
    if given and isinstance(given[0], UserMessage):
        kept = _asked_before(history, given[0])
    places: list[tuple[Message, tuple[ToolCall, ...], dict[CallId, ToolMessage]]] = []
    results_of: dict[CallId, dict[CallId, ToolMessage]] = {}
    for number, message in enumerate((*history[:kept], *given)):
        if isinstance(message, ToolMessage):
            if message.call_id in results_of:
                results_of[message.call_id][message.call_id] = message
                continue
            if number < kept:
                continue
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        results: dict[CallId, ToolMessage] = {}
        for call in calls:
            results_of[call.id] = results
        places.append((message, calls, results))
    if given and all(isinstance(message, ToolMessage) and message.call_id in results_of for message in given):
        # Sent again, or late: what the model said in between was said without them, and it is asked anew.
        while isinstance(places[-1][0], AssistantMessage) and not places[-1][1]:
            places.pop()
    paired: list[Message] = []
    for message, calls, results in places:
        paired.append(message)
        paired += [results.get(call.id) or _no_result(call) for call in calls]
    return paired


def _asked_before(history: Sequence[Message], question: UserMessage) -> int:
    """Where the tries at a question begin that nothing came of; without any, the history's end."""
    begin = place = len(history)
    while place:
        place -= 1
        if history[place] == question:
            begin = place
        elif not _is_empty(history[place]):
            break
    return begin


def _is_empty(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and not message.parts


def _no_result(call: ToolCall) -> ToolMessage:
    return ToolMessage(call_id=call.id, name=call.name, output=NO_RESULT, failed=True)
