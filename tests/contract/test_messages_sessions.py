"""M5: sessions, keys, retries and leaving on the Messages API, as on chat completions, and Claude Code's session."""

import asyncio
from typing import Any

import pytest

from holdfast.api.requests.targets import SDK_GRACE_SECONDS
from holdfast.testing import Reply, ScriptedCall, tool_call
from tests.messages_world import MESSAGES, ask, asking, events_of, message_of, text_of
from tests.serving import KEY, World, serving

CLAUDE = {"X_Claude_Code_Session_Id": "3912be75-9fa6-4e82-9d01-98628ba4338f"}
SESSION = CLAUDE["X_Claude_Code_Session_Id"]


def said(*turns: str) -> list[dict[str, Any]]:
    """A conversation, the user first."""
    return [{"role": ("user", "assistant")[place % 2], "content": words} for place, words in enumerate(turns)]


def last_asked(world: World) -> list[str]:
    return [message["content"] for message in world.provider.requests[-1].body["messages"]]


async def stored(world: World, session: str) -> list[str]:
    messages = (await world.client.get(f"/v1/sessions/{session}/messages")).json["data"]
    return [message["content"] for message in messages]


async def test_a_named_session_has_its_history_here() -> None:
    """M5.a: as on chat completions (C13): the stored one takes the place of what was sent, and the id is echoed."""
    async with serving([Reply(text="Hi."), Reply(text="Bye.")]) as world:
        for words in ("Hello?", "Bye?"):
            answer = await ask(world.client, words, headers={"X_Holdfast_Session_Id": "s"})
            assert answer.headers["X-Holdfast-Session-Id"] == "s"
        assert last_asked(world) == ["Hello?", "Hi.", "Bye?"]
        by_body = await ask(world.client, "Hm?", session_id="t")
    assert by_body.headers["X-Holdfast-Session-Id"] == "t"


async def test_a_conversation_has_a_session_without_being_named() -> None:
    """M5.a: the same over its turns, another for another conversation; each message is stored once."""
    async with serving([Reply(text="Hi."), Reply(text="Bye."), Reply(text="Oh.")]) as world:
        first = await ask(world.client, messages=said("Hello?"), system="Be kind.")
        second = await ask(world.client, messages=said("Hello?", "Hi.", "Bye?"), system="Be kind.")
        other = await ask(world.client, messages=said("Hello!"), system="Be kind.")
        names = [answer.headers["X-Holdfast-Session-Id"] for answer in (first, second, other)]
        assert names[0].startswith("api-") and names[0] == names[1] != names[2]
        assert await stored(world, names[0]) == ["Hello?", "Hi.", "Bye?", "Bye."]


async def test_a_session_is_called_by_what_its_user_said() -> None:
    """M5.b, J2.a: not by the instructions that Claude Code puts beside that, which are the same in every session."""
    reminder = {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"}
    question = {"type": "text", "text": "Why is the sky blue?"}
    async with serving([Reply(text="Hi.")]) as world:
        await ask(world.client, [reminder, question, reminder], headers=CLAUDE)
        (session,) = (await world.client.get("/v1/sessions")).json["data"]
    assert session["title"] == "Why is the sky blue?"


async def test_claude_code_s_session_is_the_run_s_and_what_it_sends_is_what_the_model_sees() -> None:
    """M5.b: it sends the whole conversation with every request; the stored one is for people."""
    async with serving([Reply(text="Hi."), Reply(text="Bye."), Reply(text="Short.")]) as world:
        first = await ask(world.client, messages=said("Hello?"), headers=CLAUDE)
        assert first.headers["X-Holdfast-Session-Id"] == SESSION
        await ask(world.client, messages=said("Hello?", "Hi.", "Bye?"), headers=CLAUDE)
        assert last_asked(world) == ["Hello?", "Hi.", "Bye?"]
        assert await stored(world, SESSION) == ["Hello?", "Hi.", "Bye?", "Bye."]
        # It has made its conversation shorter: that is what counts now, and it is another path.
        await ask(world.client, messages=said("A summary.", "I see.", "Go on."), headers=CLAUDE)
        assert last_asked(world) == ["A summary.", "I see.", "Go on."]
        assert await stored(world, SESSION) == ["Go on.", "Short."]


async def test_side_requests_of_a_claude_code_session_are_paths_of_their_own() -> None:
    """M5.b: titles and sub-agents come under the same id; the conversation goes on where it was."""
    script = [Reply(text="Hi."), Reply(text="A title"), Reply(text="Bye.")]
    async with serving(script) as world:
        await ask(world.client, messages=said("Hello?"), headers=CLAUDE)
        await ask(world.client, messages=said("Make a title."), headers=CLAUDE)
        await ask(world.client, messages=said("Hello?", "Hi.", "Bye?"), headers=CLAUDE)
        assert await stored(world, SESSION) == ["Hello?", "Hi.", "Bye?", "Bye."]


async def test_requests_of_a_claude_code_session_do_not_wait_for_each_other() -> None:
    """M5.a, M5.b: sub-agents work side by side; unless requests ask for a lane."""
    held = Reply(text=("One", " two"), hold_after=1)
    async with serving([held, Reply(text="Aside.")]) as world:
        first = asyncio.ensure_future(ask(world.client, "Long", headers=CLAUDE, lane="wait"))
        await world.provider.received()
        assert text_of(message_of(await ask(world.client, "Short", headers=CLAUDE))) == "Aside."
        busy = await ask(world.client, "Now", headers=CLAUDE, lane="reject")
        assert (busy.status, busy.json["error"]["type"]) == (409, "conflict_error")
        world.provider.requests[0].release()
        assert text_of(message_of(await first)) == "One two"


@pytest.mark.parametrize("name", ["x" * 300, "a\x01b"])
async def test_a_session_s_name_has_a_form(name: str) -> None:
    """M5.b, C14.d: at most 256 characters, none of them a control character."""
    async with serving() as world:
        answer = await world.client.raw("POST", MESSAGES, asking(), X_Claude_Code_Session_Id=name)
    assert answer.status == 400


async def test_memory_has_its_own_key() -> None:
    """M5.a: `X-Holdfast-Session-Key` as on chat completions (C14)."""
    async with serving([Reply(text="Hi.")], key=KEY) as world:
        answer = await ask(world.client, headers={"X_Holdfast_Session_Key": "me"})
        assert answer.headers["X-Holdfast-Session-Key"] == "me"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_and_body_run_once(stream: bool) -> None:
    """M5.c: the second gets the first's answer, word for word, as the first did."""
    async with serving([Reply(text="Once.")]) as world:
        answers = [await ask(world.client, stream=stream, headers={"Idempotency_Key": "k"}) for _ in range(2)]
        other = await ask(world.client, "Another?", headers={"Idempotency_Key": "k"})
        assert len(world.provider.requests) == 1
    assert answers[0].body == answers[1].body
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]
    assert (other.status, other.headers["x-should-retry"], other.json["error"]["type"]) == (
        409,
        "false",
        "conflict_error",
    )


async def test_a_stream_can_be_followed_again_by_its_run_id() -> None:
    """M5.c: the run's own events, from the start, while it goes on and after."""
    async with serving([Reply(text=("One", " two"), hold_after=1)]) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True, on_disconnect="continue")) as response:
            run = response.headers["X-Holdfast-Run-Id"]
            await response.content.readuntil(b"text_delta")
        again = asyncio.ensure_future(world.client.get(f"/v1/runs/{run}/events"))
        world.provider.requests[0].release()
        events = (await again).data
        assert (await world.client.get(f"/v1/runs/{run}/events")).data == events
    assert "".join(event["text"] for event in events if event["type"] == "text.added") == "One two"
    assert events[-1]["outcome"]["outcome"] == "completed"


async def test_an_sdk_s_own_retry_finds_the_first_try() -> None:
    """M5.c: the same body while the first is running: one run, also when the first connection is gone (C15)."""
    async with serving([Reply(text=("One", " two"), hold_after=1)]) as world:
        first = asyncio.ensure_future(ask(world.client, headers={"X_Stainless_Retry_Count": "0"}))
        await world.provider.received()
        await world.saved()
        first.cancel()
        again = asyncio.ensure_future(ask(world.client, headers={"X_Stainless_Retry_Count": "1"}))
        await asyncio.sleep(SDK_GRACE_SECONDS / 10)
        world.provider.requests[0].release()
        assert text_of(message_of(await again)) == "One two"
        assert len(world.provider.requests) == 1


async def test_a_run_goes_on_without_its_client_when_asked_to() -> None:
    """M5.d: `on_disconnect: "continue"`."""
    async with serving([Reply(text=("One", " two"), hold_after=1)]) as world:
        async with world.client.opened("POST", MESSAGES, asking(stream=True, on_disconnect="continue")) as response:
            run = response.headers["X-Holdfast-Run-Id"]
            await response.content.readuntil(b"text_delta")
        world.provider.requests[0].release()
        await world.ended(run)
        assert (await world.client.get(f"/v1/runs/{run}")).json["text"] == "One two"


async def test_what_becomes_of_a_run_when_its_server_is_gone_can_be_said() -> None:
    """M5.d, R15.a: `on_restart`; a word that means nothing is refused."""
    async with serving([Reply(text="Hi.")]) as world:
        assert (await ask(world.client, on_restart="resume")).status == 200
        assert (await ask(world.client, on_restart="perhaps")).status == 400
        assert (await ask(world.client, on_disconnect="perhaps")).status == 400


async def test_a_client_tool_s_turn_goes_on_in_claude_code_s_session() -> None:
    """M5.b, M4.c: the loop that Claude Code makes: call, result, call, result, answer, in one conversation."""
    tools = [{"name": "Bash", "input_schema": {"type": "object"}}]
    calls = [Reply(text="Hm.", calls=(tool_call("Bash", command=str(n)),)) for n in range(2)]
    script = [*calls, Reply(text="Done."), Reply(text="Welcome.")]
    messages = said("Do it.")
    async with serving(script) as world:
        for number in range(3):
            answer = await ask(world.client, messages=messages, tools=tools, stream=True, headers=CLAUDE)
            message = message_of(answer)
            if message["stop_reason"] == "tool_use":
                call = message["content"][-1]
                result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"out {number}"}
                answered = {"role": "assistant", "content": message["content"]}
                messages += [answered, {"role": "user", "content": [result]}]
        assert events_of(answer)[-1] == {"type": "message_stop"}
        told = ["Do it.", "Hm.", "out 0", "Hm.", "out 1", "Done."]
        assert await stored(world, SESSION) == told
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
        await ask(world.client, messages=messages, tools=tools, headers=CLAUDE)
        assert await stored(world, SESSION) == [*told, "Thanks.", "Welcome."]


BASH = [{"name": "Bash", "input_schema": {"type": "object"}}]


def calling(command: str, call_id: str = "call_0") -> Reply:
    """A model behind a provider that begins to count its calls anew in every conversation."""
    call = ScriptedCall(name="Bash", arguments=f'{{"command": "{command}"}}', id=call_id)
    return Reply(text=f"I {command}.", calls=(call,))


def going_on(question: str, message: dict[str, Any], result: str) -> list[dict[str, Any]]:
    """The conversation with the result of a message's last call."""
    told = {"type": "tool_result", "tool_use_id": message["content"][-1]["id"], "content": result}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [told]},
    ]


@pytest.mark.parametrize("headers", [CLAUDE, {}])
async def test_results_go_on_with_the_conversation_whose_call_they_answer(headers: dict[str, str]) -> None:
    """M5.b, M4.c: also where another one of the session (a sub-agent's, one that began alike) has its id."""
    async with serving([calling("look"), calling("hide"), Reply(text="Done.")]) as world:
        ours, other = [message_of(await ask(world.client, "Do it.", tools=BASH, headers=headers)) for _ in range(2)]
        assert ours["content"][-1]["id"] == other["content"][-1]["id"]
        await ask(world.client, messages=going_on("Do it.", ours, "seen"), tools=BASH, headers=headers)
        assert last_asked(world) == ["Do it.", "I look.", "seen"]


@pytest.mark.parametrize(("ours", "other"), [(2, 1), (1, 2)])
async def test_results_of_more_or_fewer_calls_are_not_taken_for_another_turn_s(ours: int, other: int) -> None:
    """M5.b, M4.c: asked twice, the model makes the same call each time, and in one of them one more."""
    calls = [ScriptedCall(name="Bash", arguments=f'{{"command": "look {n}"}}', id=f"call_{n}") for n in range(2)]
    script = [Reply(text="I look.", calls=tuple(calls[:many])) for many in (ours, other)]
    async with serving([*script, Reply(text="Done.")]) as world:
        message = message_of(await ask(world.client, "Do it.", tools=BASH))
        await ask(world.client, "Do it.", tools=BASH)
        results = [{"type": "tool_result", "tool_use_id": f"call_{n}", "content": f"seen {n}"} for n in range(ours)]
        turns = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
        await ask(world.client, messages=[*said("Do it."), *turns], tools=BASH)
        asked = world.provider.requests[-1].body["messages"]
    assert [call["id"] for call in asked[1]["tool_calls"]] == [f"call_{n}" for n in range(ours)]
    assert [turn["content"] for turn in asked[2:]] == [f"seen {n}" for n in range(ours)]


@pytest.mark.parametrize("input", [{"command": "look", "quietly": False}, {"command": "look about"}])
async def test_a_call_that_the_client_wrote_down_otherwise_is_still_its_call(input: dict[str, Any]) -> None:
    """M5.b: Claude Code adds defaults to a call, and makes paths shorter; its conversation goes on all the same."""
    async with serving([calling("look"), Reply(text="Done.")]) as world:
        ours = message_of(await ask(world.client, "Do it.", tools=BASH, headers=CLAUDE))
        ours["content"][-1]["input"] = input
        await ask(world.client, messages=going_on("Do it.", ours, "seen"), tools=BASH, headers=CLAUDE)
        assert await stored(world, SESSION) == ["Do it.", "I look.", "seen", "Done."]


async def test_what_has_others_work_for_it_goes_on_where_it_was() -> None:
    """M5.b: however many calls its sub-agents have made meanwhile, it is one conversation."""
    script = [calling("look", "call_main"), *[calling("hide", f"call_{n}") for n in range(12)], Reply(text="Done.")]
    async with serving(script) as world:
        ours = message_of(await ask(world.client, "Do it.", tools=BASH, headers=CLAUDE))
        for number in range(12):
            await ask(world.client, f"Hide {number}.", tools=BASH, headers=CLAUDE)
        await ask(world.client, messages=going_on("Do it.", ours, "seen"), tools=BASH, headers=CLAUDE)
        assert await stored(world, SESSION) == ["Do it.", "I look.", "seen", "Done."]
