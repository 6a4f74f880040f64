"""Retries, over an upstream in memory and a clock that is moved by hand."""

from random import Random

import pytest

from holdfast.errors import (
    ProtocolError,
    ProviderRefusedError,
    StreamingUnsupportedError,
    StreamStalledError,
    TransportLostError,
    UpstreamError,
)
from holdfast.events import Answered, Delta, ReasoningSigned, TextAdded, ToolCallBegan, UpstreamRetried
from holdfast.ids import CallId
from holdfast.testing import HurriedClock, ManualClock, ScriptedUpstream, says, stream
from holdfast.upstream.retry import CAP_SECONDS, RetryingUpstream, is_transient
from tests.upstream_world import CALL, hear

LOST = TransportLostError("lost")


def retrying(upstream: ScriptedUpstream, retries: int = 2, clock: HurriedClock | None = None) -> RetryingUpstream:
    return RetryingUpstream(upstream, retries, clock or HurriedClock(), Random(1))


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (TransportLostError("lost"), True),
        (StreamStalledError("silent"), True),
        (ProtocolError("odd"), True),
        (ProviderRefusedError("slow down", status=429), True),
        (ProviderRefusedError("broken", status=500), True),
        (ProviderRefusedError("overloaded", status=529), True),
        (ProviderRefusedError("bad key", status=401), False),
        (ProviderRefusedError("conflict", status=409), False),
        (ProviderRefusedError("time-out", status=408), False),
        (ProviderRefusedError("no status"), False),
        (StreamingUnsupportedError("cannot"), False),
        (UpstreamError("what"), False),
    ],
)
def test_only_lost_connections_and_429_and_5xx_are_worth_another_try(error: UpstreamError, transient: bool) -> None:
    assert is_transient(error) is transient


def test_an_error_from_inside_a_stream_is_final_whatever_its_status() -> None:
    error = ProviderRefusedError("overloaded", status=529)
    error.in_stream = True
    assert not is_transient(error)


async def test_two_failures_and_then_an_answer() -> None:
    async with ScriptedUpstream([LOST, LOST, says("hello you")]) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.text == "hello you"
    assert [(each.attempt, each.error, each.model) for each in heard.retries] == [
        (1, "lost", CALL.model),
        (2, "lost", CALL.model),
    ]


async def test_when_the_tries_run_out_the_first_error_is_what_the_caller_sees() -> None:
    errors = [TransportLostError("the first"), ProviderRefusedError("later", status=503), TransportLostError("last")]
    async with ScriptedUpstream(errors) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.error is errors[0]
    assert len(upstream.calls) == 3


async def test_with_no_retries_there_is_one_try() -> None:
    async with ScriptedUpstream([LOST]) as upstream:
        heard = await hear(retrying(upstream, retries=0))
    assert heard.error is LOST
    assert heard.batches == []


async def test_a_final_error_after_a_lost_one_stops_the_tries() -> None:
    refused = ProviderRefusedError("bad key", status=401)
    async with ScriptedUpstream([LOST, refused]) as upstream:
        heard = await hear(retrying(upstream, retries=5))
    assert heard.error is refused


async def test_after_a_word_has_been_delivered_the_error_passes_through() -> None:
    async with ScriptedUpstream([[[TextAdded(text="He")], LOST]]) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.text == "He"
    assert heard.error is LOST
    assert heard.retries == []


async def test_a_tool_call_that_has_begun_counts_as_delivered() -> None:
    began = ToolCallBegan(index=0, call_id=CallId("call_0"), name="write_file")
    async with ScriptedUpstream([[[began], LOST]]) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.deltas == [began]
    assert heard.error is LOST


async def test_what_nobody_has_seen_of_a_failed_try_does_not_stand_twice() -> None:
    sealed = ReasoningSigned(metadata={"responses": {"encrypted_content": "x"}})
    answer: list[Delta] = [TextAdded(text="Hi"), Answered(finish="stop", model="m")]
    async with ScriptedUpstream([[[sealed], LOST], [[sealed], answer]]) as upstream:
        heard = await hear(retrying(upstream))
    assert [delta for delta in heard.deltas if not isinstance(delta, UpstreamRetried)] == [sealed, *answer]


async def test_a_batch_without_deltas_is_passed_on_as_activity() -> None:
    async with ScriptedUpstream([[[], *says("hi")]]) as upstream:
        heard = await hear(retrying(upstream))
    assert list(heard.batches[0]) == []


async def test_a_retry_of_the_provider_itself_is_told_under_the_number_of_the_try() -> None:
    """That a model cannot stream may come to light at any try."""
    unable = UpstreamRetried(model=CALL.model, attempt=1, error="cannot stream", wait_seconds=0.0)
    async with ScriptedUpstream([LOST, [[unable], *says("hi")]]) as upstream:
        heard = await hear(retrying(upstream))
    assert [(each.attempt, each.error) for each in heard.retries] == [(1, "lost"), (2, "cannot stream")]


async def test_an_empty_answer_is_an_answer() -> None:
    answered = Answered(finish="stop", model="m")
    async with ScriptedUpstream([[[answered]]]) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.deltas == [answered]


async def test_waits_grow_and_are_jittered_and_capped() -> None:
    clock = HurriedClock()
    async with ScriptedUpstream([LOST] * 21) as upstream:
        await hear(retrying(upstream, retries=20, clock=clock))
    assert len(clock.slept) == 20
    assert len(set(clock.slept)) == 20
    for place, seconds in enumerate(clock.slept):
        assert 0 <= seconds <= min(CAP_SECONDS, 0.5 * 2**place)
    assert max(clock.slept) > 4.0


async def test_retry_after_is_a_lower_bound() -> None:
    clock = HurriedClock()
    limited = ProviderRefusedError("slow down", status=429, retry_after_seconds=20.0)
    async with ScriptedUpstream([limited, says("hi")]) as upstream:
        heard = await hear(retrying(upstream, clock=clock))
    assert clock.slept == [20.0]
    assert heard.retries[0].wait_seconds == 20.0


async def test_a_provider_that_asks_for_too_much_patience_has_refused() -> None:
    limited = ProviderRefusedError("come back tomorrow", status=429, retry_after_seconds=86_400.0)
    async with ScriptedUpstream([limited]) as upstream:
        heard = await hear(retrying(upstream))
    assert heard.error is limited


async def test_the_retry_is_told_before_the_wait_and_the_wait_can_be_cancelled() -> None:
    clock = ManualClock()
    async with ScriptedUpstream([LOST]) as upstream:
        batches = stream(RetryingUpstream(upstream, 2, clock, Random(1)), CALL)
        told = await anext(batches)
        assert isinstance(told[0], UpstreamRetried)
        assert clock.sleepers == 0
        await batches.aclose()
    assert len(upstream.calls) == 1
