"""Chaos on request (T6), from the words of a model's name or a prompt to what a client sees."""

import pytest
from msgspec.structs import replace

from holdfast.errors import ProviderRefusedError, TransportLostError
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, ToolCall, ToolMessage, user_says
from holdfast.testing import CHAOS_MODELS, FAULTS, Fault, ScriptedProvider, chaos_reply, chaos_responder
from holdfast.upstream.port import ModelCall
from tests.upstream_world import QUICK, asking, hear


@pytest.mark.parametrize(
    ("model", "prompt", "fault"),
    [
        ("chaos/die_after-3", "Hello", Fault("die_after", 3)),
        ("chaos/stall", "Hello", Fault("stall")),
        ("chaos/429", "Hello", Fault("status", 429)),
        ("429", "Hello", Fault("status", 429)),
        ("chaos/none", "Tell me a story [chaos: reset-2] please", Fault("reset", 2)),
        ("chaos/stall", "[CHAOS: eof]", Fault("eof")),
        ("chaos/chaos", "Hello\nchaos: cut_tool_call\nbye", Fault("cut_tool_call")),
        ("chaos", "Hello", Fault()),
        ("chaos/none", "Hello", Fault()),
        ("chaos/nonsense", "Hello", Fault()),
    ],
)
def test_the_prompt_or_the_models_name_chooses_the_fault(model: str, prompt: str, fault: Fault) -> None:
    """T6: the prompt goes first."""
    assert chaos_reply(model, prompt).fault == fault


def test_a_fault_that_is_not_there_is_answered_with_those_that_are() -> None:
    """A typing error is told, not acted out."""
    reply = chaos_reply("chaos/explode", "Hello")
    assert "explode" in reply.whole_text and "die_after" in reply.whole_text


def test_without_a_fault_it_lists_what_it_can_do() -> None:
    """Every model is named in the answer."""
    text = chaos_reply("chaos/none", "Hello").whole_text
    assert all(name in text for name in CHAOS_MODELS)


def test_every_fault_has_a_model_with_a_description() -> None:
    """T6: all that can go wrong can be asked for."""
    assert {f"chaos/{name}" for name in FAULTS if name != "status"} < set(CHAOS_MODELS)
    assert "chaos/429" in CHAOS_MODELS
    assert all(CHAOS_MODELS.values())
    for name in CHAOS_MODELS:
        assert chaos_reply(name, "Hello").fault.description == CHAOS_MODELS[name]


@pytest.mark.parametrize("count", [0, 3, 50, 500])
async def test_a_fault_comes_as_late_as_it_was_asked_for(count: int) -> None:
    """T6: there is always something left to lose."""
    call = ModelCall(model="scripted/chaos", messages=(user_says(f"[chaos: reset-{count}]"),))
    reply = replace(chaos_reply("", f"[chaos: reset-{count}]"), delay_seconds=0.0)
    async with ScriptedProvider(lambda request: reply) as provider:
        async with asking(provider, stream=replace(QUICK, retries=0)) as upstream:
            heard = await hear(upstream, call)
    assert isinstance(heard.error, TransportLostError)
    words = reply.text
    assert isinstance(words, tuple) and len(words) > count
    # A reset may throw away what was on its way; more than was sent can never arrive.
    assert "".join(words[:count]).startswith(heard.text)


async def test_a_client_of_the_chaos_provider_sees_the_fault_it_asked_for() -> None:
    """T6: through the same door as any model."""
    call = ModelCall(model="scripted/die_after-4", messages=(user_says("Hello"),))
    async with ScriptedProvider(chaos_responder) as provider:
        async with asking(provider, stream=replace(QUICK, retries=0)) as upstream:
            lost = await hear(upstream, call)
            refused = await hear(upstream, replace(call, model="scripted/401"))
            cut = await hear(upstream, replace(call, model="scripted/truncated"))
    assert isinstance(lost.error, TransportLostError) and len(lost.text.split()) == 4
    assert isinstance(refused.error, ProviderRefusedError) and refused.error.status == 401
    assert cut.answered is not None and cut.answered.finish == "length"


async def test_once_a_tool_has_answered_the_reply_is_whole() -> None:
    """T6: a run that was broken in the middle can be brought to an end."""
    asked = user_says("[chaos: 401]")
    called = AssistantMessage(parts=(ToolCall(id=CallId("c"), name="f", arguments="{}"),))
    answered = ToolMessage(call_id=CallId("c"), output="done")
    async with ScriptedProvider(chaos_responder) as provider, asking(provider) as upstream:
        refused = await hear(upstream, ModelCall(model="scripted/chaos", messages=(asked,)))
        whole = await hear(upstream, ModelCall(model="scripted/chaos", messages=(asked, called, answered)))
    assert isinstance(refused.error, ProviderRefusedError)
    assert whole.answered is not None and whole.answered.finish == "stop" and "is whole" in whole.text
