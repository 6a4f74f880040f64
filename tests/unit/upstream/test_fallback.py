"""Falling back to another model, over upstreams in memory."""

from contextlib import aclosing

import pytest
from msgspec.structs import replace

from holdfast.errors import (
    ProviderRefusedError,
    StreamingUnsupportedError,
    TransportLostError,
    UpstreamError,
)
from holdfast.events import FellBack, TextAdded
from holdfast.testing import ScriptedUpstream, says, stream
from holdfast.upstream.fallback import FallbackUpstream, is_worth_another_model
from tests.upstream_world import CALL, hear

LOST = TransportLostError("lost")
FALLBACKS = {"a/one": ("b/two", "c/three")}


def falling_back(upstream: ScriptedUpstream) -> FallbackUpstream:
    return FallbackUpstream(upstream, lambda model: FALLBACKS.get(model, ()))


ONE = replace(CALL, model="a/one")


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (TransportLostError("lost"), True),
        (StreamingUnsupportedError("cannot"), True),
        (ProviderRefusedError("no key", status=401), True),
        (ProviderRefusedError("not yours", status=403), True),
        (ProviderRefusedError("no such model", status=404), True),
        (ProviderRefusedError("slow down", status=429), True),
        (ProviderRefusedError("broken", status=500), True),
        (ProviderRefusedError("no status"), True),
        (ProviderRefusedError("malformed", status=400), False),
        (ProviderRefusedError("too large", status=413), False),
        (ProviderRefusedError("malformed", status=422), False),
        (ProviderRefusedError("too long", code="context_length_exceeded"), False),
    ],
)
def test_another_model_is_asked_unless_the_request_itself_is_wrong(error: UpstreamError, worth: bool) -> None:
    assert is_worth_another_model(error) is worth


async def test_the_next_models_are_asked_in_order() -> None:
    async with ScriptedUpstream([LOST, ProviderRefusedError("no", status=401), says("third")]) as upstream:
        heard = await hear(falling_back(upstream), ONE)
    assert heard.text == "third"
    assert heard.fallbacks == [
        FellBack(from_model="a/one", to_model="b/two", error="lost"),
        FellBack(from_model="b/two", to_model="c/three", error="no"),
    ]
    assert [call.model for call in upstream.calls] == ["a/one", "b/two", "c/three"]


async def test_when_all_fail_the_first_models_error_is_what_the_caller_sees() -> None:
    async with ScriptedUpstream([LOST, TransportLostError("b"), TransportLostError("c")]) as upstream:
        heard = await hear(falling_back(upstream), ONE)
    assert heard.error is LOST


async def test_after_a_word_has_been_delivered_no_other_model_is_asked() -> None:
    async with ScriptedUpstream([[[TextAdded(text="He")], LOST]]) as upstream:
        heard = await hear(falling_back(upstream), ONE)
    assert (heard.text, heard.error, heard.fallbacks) == ("He", LOST, [])


async def test_a_request_that_is_wrong_is_not_sent_to_anybody_else() -> None:
    wrong = ProviderRefusedError("malformed", status=400)
    async with ScriptedUpstream([wrong]) as upstream:
        heard = await hear(falling_back(upstream), ONE)
    assert heard.error is wrong


async def test_a_model_without_fallbacks_is_asked_alone() -> None:
    async with ScriptedUpstream([LOST]) as upstream:
        heard = await hear(falling_back(upstream), CALL)
    assert (heard.error, heard.fallbacks) == (LOST, [])


async def test_leaving_early_closes_the_model_that_is_speaking() -> None:
    async with ScriptedUpstream([LOST, says("a long story")]) as upstream:
        async with aclosing(stream(falling_back(upstream), ONE)) as batches:
            await anext(batches)
            await anext(batches)
            assert upstream.open_streams == 1
        assert (upstream.open_streams, upstream.closed_early) == (0, 1)
