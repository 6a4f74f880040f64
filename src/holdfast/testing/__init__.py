"""For tests of whatever is built on Holdfast: the server in one process, and fakes for all that it depends on.

A scripted provider on a real socket (the one behind `--chaos`), a scripted upstream in memory, a clock moved by hand.
Above everything that they stand in for; only tests and benchmarks use them.
"""

from holdfast.chaos.faults import FAULTS, Fault, FaultName, parse_fault
from holdfast.chaos.models import CHAOS_MODELS, chaos_reply, chaos_responder
from holdfast.chaos.provider import RecordedRequest, ScriptedProvider
from holdfast.chaos.reply import Reply, ScriptedCall, tool_call
from holdfast.server import Parts
from holdfast.testing.clock import HurriedClock, ManualClock
from holdfast.testing.embedded import ServerUnderTest, open_for_test
from holdfast.testing.server import LocalServer, open_local_server
from holdfast.testing.upstream import ScriptedUpstream, Step, Turn, calls, says, stream

__all__ = [
    "CHAOS_MODELS",
    "FAULTS",
    "Fault",
    "FaultName",
    "HurriedClock",
    "LocalServer",
    "ManualClock",
    "Parts",
    "RecordedRequest",
    "Reply",
    "ScriptedCall",
    "ScriptedProvider",
    "ScriptedUpstream",
    "ServerUnderTest",
    "Step",
    "Turn",
    "calls",
    "chaos_reply",
    "chaos_responder",
    "open_for_test",
    "open_local_server",
    "parse_fault",
    "says",
    "stream",
    "tool_call",
]
