"""Public fakes: a scripted provider on a real socket, a scripted upstream in memory, a clock moved by hand.

Above everything they stand in for; only tests, benchmarks and `--chaos` use them.
"""

from holdfast.chaos.faults import FAULTS, Fault, FaultName, parse_fault
from holdfast.chaos.models import CHAOS_MODELS, chaos_reply, chaos_responder
from holdfast.chaos.provider import RecordedRequest, ScriptedProvider
from holdfast.chaos.reply import Reply, ScriptedCall, tool_call
from holdfast.testing.clock import HurriedClock, ManualClock
from holdfast.testing.upstream import ScriptedUpstream, says, stream

__all__ = [
    "CHAOS_MODELS",
    "FAULTS",
    "Fault",
    "FaultName",
    "HurriedClock",
    "ManualClock",
    "RecordedRequest",
    "Reply",
    "ScriptedCall",
    "ScriptedProvider",
    "ScriptedUpstream",
    "chaos_reply",
    "chaos_responder",
    "parse_fault",
    "says",
    "stream",
    "tool_call",
]
