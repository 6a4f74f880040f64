"""A connection that a stream has borrowed: what goes out in which packet (C2)."""

import asyncio
from types import SimpleNamespace
from typing import Any

from holdfast.serving.lending import UvicornBody

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Packets:
    """A transport that notes every write."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


class Borrower:
    def lost(self) -> None:
        raise AssertionError("nobody has left")


def lend() -> tuple[UvicornBody, Packets, Any]:
    """A body whose headers have been made, and are held."""
    packets = Packets()
    flow = SimpleNamespace(write_paused=False, resume_reading=lambda: None)
    cycle = SimpleNamespace(
        flow=flow, transport=packets, disconnected=False, scope={}, keep_alive=True, on_response=lambda: None
    )
    connection = SimpleNamespace(loop=asyncio.get_running_loop(), scope=cycle.scope, headers=[], borrower=None)
    body = UvicornBody(connection, cycle)  # type: ignore[arg-type]
    body.buffer_headers()
    cycle.transport.write(HEAD)
    assert packets.sent == []
    return body, packets, cycle


async def test_headers_and_the_role_leave_together_at_once() -> None:
    """C2.b: one packet, and nobody has to say anything for it."""
    body, packets, cycle = lend()
    assert body.start(Borrower(), b"role")
    await asyncio.sleep(0)
    assert packets.sent == [HEAD + b"4\r\nrole\r\n"]
    assert cycle.transport is packets
    body.push(b"word")
    body.end(b"last")
    assert packets.sent[1:] == [b"4\r\nword\r\n", b"4\r\nlast\r\n0\r\n\r\n"]


async def test_what_comes_in_the_same_step_goes_along() -> None:
    """C2.b: in its order, and once."""
    body, packets, _ = lend()
    body.start(Borrower(), b"role")
    body.push(b"word")
    assert packets.sent == [HEAD + b"4\r\nrole\r\n4\r\nword\r\n"]
    await asyncio.sleep(0)
    assert len(packets.sent) == 1


async def test_an_answer_that_ends_in_its_first_step_is_whole() -> None:
    """C2.b: a run that had ended long ago, say."""
    body, packets, _ = lend()
    body.start(Borrower(), b"")
    body.end(b"all of it")
    await asyncio.sleep(0)
    assert packets.sent == [HEAD + b"9\r\nall of it\r\n0\r\n\r\n"]


async def test_headers_of_a_stream_that_never_began_are_not_kept_back() -> None:
    """What is then said instead reaches the client."""
    body, packets, cycle = lend()
    body.flush_headers()
    cycle.transport.write(b"no")
    assert packets.sent == [HEAD, b"no"]


async def test_nothing_is_written_to_a_client_that_has_gone() -> None:
    """Neither when the stream would begin, nor in the next step."""
    body, packets, cycle = lend()
    body.start(Borrower(), b"role")
    cycle.disconnected = True
    await asyncio.sleep(0)
    gone, more, cycle = lend()
    cycle.disconnected = True
    assert not gone.start(Borrower(), b"role")
    assert packets.sent == more.sent == []
