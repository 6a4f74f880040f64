"""Between a body and whoever hears it: what is pushed on, in which form a stream is read, and under which name."""

from typing import Any

import pytest

from holdfast.errors import ProtocolError
from holdfast.events import Answered, Delta, TextAdded
from holdfast.upstream.stream_reader import MAX_KEPT_READS
from holdfast.upstream.transport.port import ResponseCutError
from tests.codec_world import chat, frames
from tests.upstream_world import Heard, MemoryResponse, MemoryTransport, hear, upstream_over

COMMENT = b": still here\n\n"


def said(text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}


ENDED = {"type": "response.completed", "response": {"model": "alias-1", "status": "completed", "output": []}}
OTHER_FORM = frames(said("Hel"), said("lo"), ENDED)
"""Responses, without its opening events."""
ANSWER: list[Delta] = [
    TextAdded(text="Hel"),
    TextAdded(text="lo"),
    Answered(finish="stop", model="odd/scripted/m-1"),
]


async def read(*pieces: bytes | Exception, protocol: Any = "chat_completions") -> tuple[Heard, MemoryResponse]:
    response = MemoryResponse(pieces)
    return await hear(upstream_over(MemoryTransport(response), protocol=protocol)), response


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


async def test_every_read_with_a_frame_is_a_push_and_comments_are_none() -> None:
    """U7: what carries no delta is activity too, at the beginning and later."""
    empty = frames(chat(""))
    heard, _ = await read(
        COMMENT, empty, frames(chat("Hi")), empty, COMMENT, empty, frames(chat(finish="stop"), done=True)
    )
    assert [len(batch) for batch in heard.batches] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("size", [len(OTHER_FORM), 60, 7, 2])
async def test_the_other_form_of_responses_is_read_wherever_it_is_cut(size: int) -> None:
    """U11.a: nothing of what the strict reading had seen is lost, and nothing stands twice."""
    heard, response = await read(*cut(OTHER_FORM, size), protocol="responses")
    assert heard.deltas == ANSWER
    assert response.ended == ["released"]


async def test_the_other_form_is_read_also_when_its_end_shows_that_it_is_needed() -> None:
    """U11.a: the only frame that has come lacks its blank line."""
    answer = {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}
    only = {"type": "response.completed", "response": {"status": "completed", "output": [answer]}}
    heard, response = await read(frames(only).rstrip(b"\n"), protocol="responses")
    assert (heard.text, heard.error, response.ended) == ("Hello", None, ["released"])


async def test_a_stream_is_kept_for_its_other_form_only_so_long() -> None:
    """A provider that sends comments for ever does not fill our memory."""
    few, _ = await read(*[COMMENT] * (MAX_KEPT_READS - 1), OTHER_FORM, protocol="responses")
    assert few.deltas == ANSWER
    many, response = await read(*[COMMENT] * MAX_KEPT_READS, OTHER_FORM, protocol="responses")
    assert isinstance(many.error, ProtocolError)
    assert (many.deltas, response.ended) == ([], ["cut"])


async def test_the_other_form_is_not_looked_for_once_there_is_a_delta() -> None:
    """U12.a: whoever has seen a word sees it once."""
    opened = {"type": "response.created", "response": {"model": "alias-1"}}
    odd = {"type": "response.completed", "response": {"status": "on holiday", "output": []}}
    for pieces in ([frames(opened), frames(said("Hi")), frames(odd)], [frames(opened, said("Hi"), odd)]):
        heard, response = await read(*pieces, protocol="responses")
        assert heard.deltas == [TextAdded(text="Hi")]
        assert isinstance(heard.error, ProtocolError)
        assert response.ended == ["cut"]


async def test_an_answer_is_told_under_the_name_by_which_it_was_asked() -> None:
    """U15.b: whatever alias the provider reports."""
    heard, _ = await read(frames({**chat("Hi", "stop"), "model": "alias-1"}, done=True))
    assert heard.answered == Answered(finish="stop", model="odd/scripted/m-1")


async def test_a_connection_lost_behind_the_finish_reason_costs_nothing_but_the_connection() -> None:
    """U16.b: the answer is whole."""
    heard, response = await read(frames(chat("Hi", "stop")), ResponseCutError())
    assert heard.answered is not None and heard.error is None
    assert response.ended == ["cut"]


async def test_a_connection_lost_in_a_stream_is_told_as_the_transport_has_it() -> None:
    """U16.b: that it was lost, and not only that the answer has no end."""
    heard, _ = await read(frames(chat("Hi")), ResponseCutError())
    assert heard.error is not None and "was lost in the middle of the answer" in heard.error.message
    heard, _ = await read(frames(chat("Hi")))
    assert heard.error is not None and "ended before it was finished" in heard.error.message
