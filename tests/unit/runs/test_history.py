"""What a run is shown of the past: whose, from where on, and how much of it."""

import pytest

from holdfast.ids import CallId
from holdfast.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, UserMessage, user_says
from holdfast.runs.history import TRUNCATED_MESSAGES, trim
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import says
from tests.runs_world import World, open_world


def answer(text: str) -> AssistantMessage:
    return AssistantMessage(parts=(Text(text=text),))


def result(number: int) -> ToolMessage:
    return ToolMessage(call_id=CallId(str(number)), name="echo", output="")


CALLS = AssistantMessage(parts=tuple(ToolCall(id=CallId(str(n)), name="echo", arguments="{}") for n in range(2)))
TALK: list[Message] = [user_says("q"), CALLS, result(0), result(1), answer("a"), user_says("r"), answer("b")]


@pytest.mark.parametrize(("keep", "kept"), [(8, 7), (7, 7), (6, 6), (5, 3), (4, 3), (3, 3), (2, 2), (1, 1)])
def test_a_history_is_trimmed_to_its_newest_and_never_between_a_call_and_its_result(keep: int, kept: int) -> None:
    """P7: fewer rather than a result whose call is gone."""
    assert trim(TALK, keep) == TALK[len(TALK) - kept :]


async def asked_after(world: World, **changes: object) -> list[str]:
    """What the model is shown before what is new."""
    world.upstream.add(says("ok"))
    await world.run("now", stored_history=True, **changes)
    return [m.text for m in world.upstream.calls[-1].messages[:-1] if isinstance(m, UserMessage | AssistantMessage)]


async def test_a_run_is_shown_its_sessions_past_or_the_one_that_it_was_asked_to_follow() -> None:
    """C13.b, P5.a, P6.d: the newest of its session, the path to a message, or nothing at all."""
    async with open_world(MemoryStore()) as world:
        for text in ("one", "two"):
            world.upstream.add(says(f"re {text}"))
            await world.run(text, stored_history=True)
        session = await world.store.get_session(world.request().session)
        assert session is not None and session.head is not None
        path = await world.store.path(session.head)
        assert await asked_after(world, parent=path[1].id) == ["one", "re one"]
        assert await asked_after(world, rooted=True) == []
        assert await asked_after(world, session="other") == []
        assert await asked_after(world, history=(user_says("sent"),), parent=path[3].id) == [
            m.message.text for m in path
        ]  # type: ignore[union-attr]


async def test_a_history_is_shown_whole_unless_it_is_to_be_trimmed() -> None:
    """P7: at most 100 messages when asked; otherwise it is passed whole."""
    async with open_world(MemoryStore()) as world:
        for number in range(60):
            world.upstream.add(says("ok"))
            await world.run(str(number), stored_history=True)
        assert len(await asked_after(world)) == 120
        assert len(await asked_after(world, truncate_history=True)) == TRUNCATED_MESSAGES == 100
