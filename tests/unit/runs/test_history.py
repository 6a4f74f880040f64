"""What a run is shown of the past: whose, from where on, and how much of it."""

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.events import Warned
from holdfast.ids import CallId, NodeId, SessionId
from holdfast.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, UserMessage, user_says
from holdfast.outcomes import Completed
from holdfast.runs.history import LOST_RESULT, TRUNCATED_MESSAGES, mend_results, trim
from holdfast.store.memory import MemoryStore
from holdfast.store.records import SessionRecord, StoredMessage
from holdfast.testing.upstream import says
from tests.runs_world import World, open_world, outcome_of


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
        sent = (user_says("sent"),)
        assert await asked_after(world, history=sent, parent=path[3].id) == ["one", "re one", "two", "re two"]


async def test_a_history_is_shown_whole_unless_it_is_to_be_trimmed() -> None:
    """P7: at most 100 messages when asked; otherwise it is passed whole."""
    async with open_world(MemoryStore()) as world:
        for number in range(60):
            world.upstream.add(says("ok"))
            await world.run(str(number), stored_history=True)
        assert len(await asked_after(world)) == 120
        assert len(await asked_after(world, truncate_history=True)) == TRUNCATED_MESSAGES == 100


class ForgetfulStore(MemoryStore):
    """Cannot read conversations."""

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        raise StoreUnavailableError("the disk is gone")


async def test_a_history_that_cannot_be_read_is_none_and_the_log_says_so() -> None:
    """C13.c: the run goes on without it, and nobody takes its answer for one that knew the past."""
    async with open_world(ForgetfulStore(), [says("ok")]) as world:
        events = await world.run(stored_history=True)
        warned = [event.message for event in events if isinstance(event, Warned)]
        assert warned == ["The stored history could not be read: the disk is gone"]
        assert [len(call.messages) for call in world.upstream.calls] == [1]
        assert outcome_of(events) == Completed()


def stored(*messages: Message | None) -> list[StoredMessage]:
    """A path; None: what is stored there cannot be read."""
    return [
        StoredMessage(
            id=NodeId(place),
            run=None,
            message=message or AssistantMessage(parts=()),
            created_at=0.0,
            unreadable=message is None,
        )
        for place, message in enumerate(messages)
    ]


def lost(number: int) -> ToolMessage:
    return ToolMessage(call_id=CallId(str(number)), name="echo", output=LOST_RESULT, failed=True, by_server=True)


@pytest.mark.parametrize(
    ("path", "mended"),
    [
        ([CALLS, result(0), None, answer("a")], [CALLS, result(0), lost(1), answer("a")]),
        ([CALLS, None, result(1), answer("a")], [CALLS, lost(0), result(1), answer("a")]),
        ([CALLS, None, None], [CALLS, lost(0), lost(1)]),
        ([CALLS, result(0), result(1), None, answer("a")], [CALLS, result(0), result(1), None, answer("a")]),
        ([None, CALLS, result(0), result(1), None], [None, CALLS, result(0), result(1), None]),
        ([CALLS, None, result(1), CALLS, result(0), None], [CALLS, lost(0), result(1), CALLS, result(0), lost(1)]),
        (
            [CALLS, None, result(1), user_says("q"), answer("a")],
            [CALLS, lost(0), result(1), user_says("q"), answer("a")],
        ),
    ],
)
def test_only_a_result_that_is_missing_is_made_up(path: list[Message | None], mended: list[Message | None]) -> None:
    """J2.c, C11.a: each once, in its turn, and what was something else stays a hole."""
    found = [None if each.unreadable else each.message for each in mend_results(stored(*path))]
    assert found == mended
