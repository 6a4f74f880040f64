"""Faults on request (T6): the model's name or the prompt says what goes wrong.

`holdfast serve --chaos` puts a `ScriptedProvider(chaos_responder)` behind the provider name `chaos`. Above `provider`.
"""

import re
from typing import Final

from holdfast.chaos.faults import FAULTS, NO_FAULT, STATUSES, Fault, FaultName, parse_fault
from holdfast.chaos.recorded import RecordedRequest
from holdfast.chaos.reply import Reply, pieces_of
from holdfast.messages import Usage

CHAOS_MODELS: Final[dict[str, str]] = {
    **{f"chaos/{name}": Fault(name).description for name in FAULTS if name != "status"},
    **{f"chaos/{status}": Fault("status", status).description for status in STATUSES},
}
"""Every model of the chaos provider, and in a few words what it does. A number may follow: `chaos/die_after-5`."""

_ASKED = re.compile(r"\[chaos:\s*([^\]\n]+)\]|^\s*chaos:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_HOW = (
    "I am the chaos model: I break in the way you ask for, so that you can see what your client makes of it. "
    "Name a fault in the model's name (chaos/die_after-3) or in the message ([chaos: reset-2]). "
)
_COUNTED: Final[frozenset[FaultName]] = frozenset({name for name, kind in FAULTS.items() if "chunks" in kind.number})


def chaos_reply(model: str, prompt: str) -> Reply:
    """What the chaos model says: the prompt's fault, else the model name's, else none."""
    asked = _ASKED.search(prompt)
    named = model.rpartition("/")[2]
    words = (asked[1] or asked[2]) if asked else "none" if named in ("", "chaos") else named
    try:
        fault = parse_fault(words)
    except ValueError as error:
        return _make_reply(str(error), NO_FAULT)
    if fault == NO_FAULT:
        listed = "\n".join(f"- `{name}` {description}" for name, description in CHAOS_MODELS.items())
        return _make_reply(f"{_HOW}\n\n{listed}\n", fault)
    return _make_reply(f"{_HOW}This time it {fault.description}. ", fault)


def chaos_responder(request: RecordedRequest) -> Reply:
    """`chaos_reply` for a request; once a tool has answered, the reply is whole."""
    if not request.prompt:
        return _make_reply("The tool has answered, so this reply is whole.", NO_FAULT)
    return chaos_reply(request.model, request.prompt)


def _make_reply(text: str, fault: Fault) -> Reply:
    pieces = list(pieces_of(text))
    if fault.name in _COUNTED:
        # There must be something left to lose, however late the fault is asked for.
        pieces += [f"{number} " for number in range(1, min(fault.number, 100_000) + 10)]
    usage = Usage(input_tokens=12, output_tokens=len(pieces))
    return Reply(text=tuple(pieces), usage=usage, fault=fault, delay_seconds=0.01)
