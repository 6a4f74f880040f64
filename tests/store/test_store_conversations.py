"""Sessions, messages, responses and conversation names, over every store."""

import asyncio

import msgspec
import pytest

from holdfast.errors import LogConflictError
from holdfast.ids import CallId, NodeId, RunId, SessionId
from holdfast.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    user_says,
)
from holdfast.store.port import Store
from holdfast.store.records import (
    ConversationRecord,
    RunFilter,
    SessionFilter,
    SessionPlace,
    SessionRecord,
    StoredMessage,
)
from tests.store.store_world import (
    SESSION,
    an_ending,
    append,
    assistant_says,
    last_batch,
    run_record,
    said_in,
    said_on_path,
    started,
    whole_log,
    whole_run,
)

NOWHERE = NodeId(999_999)


async def test_runs_of_a_session_follow_each_other(store: Store) -> None:
    """C13.b: the stored history is the path to the session's newest message."""
    await whole_run(store, run_record(said="one"), "1")
    await whole_run(store, run_record(said="two"), "2")
    await whole_run(store, run_record(said="elsewhere", session="other"), "0")
    assert await said_in(store) == ["one", "1", "two", "2"]
    assert await said_in(store, "other") == ["elsewhere", "0"]
    assert await store.path(NOWHERE) == []


async def test_every_kind_of_message_is_kept_as_it_was(store: Store) -> None:
    """P5.a: the full transcript, tool calls, results and what providers want back included."""
    record = run_record()
    messages: tuple[Message, ...] = (
        UserMessage(parts=(Text(text="what is this?"), Image(url="data:image/png;base64,AAAA", detail="low"))),
        AssistantMessage(
            parts=(
                Reasoning(text="hm", metadata={"anthropic": {"signature": "s"}}),
                Text(text="I look. "),
                ToolCall(id=CallId("call_1"), name="look", arguments='{"a": 1', metadata={"chat": {"x": [1, None]}}),
            )
        ),
        ToolMessage(call_id=CallId("call_1"), name="look", output="no \u2028 字", failed=True),
        assistant_says(""),
    )
    await store.create_run(record)
    ending = an_ending(record, messages=messages)
    await store.end_run(record.id, last_batch(0, ending), ending)
    kept = await store.get_run(record.id)
    assert kept is not None and kept.head is not None
    assert tuple(stored.message for stored in await store.path(kept.head)) == messages


async def test_a_run_follows_the_message_it_names_and_branches_share_nothing_after_it(store: Store) -> None:
    """P5.a: continuing from an older response leaves the newer ones out, each message once."""
    first = await whole_run(store, run_record(said="one"), "1")
    second = await whole_run(store, run_record(said="two"), "2")
    branch = await whole_run(store, run_record(said="other two", parent=first.head), "2b")
    assert await said_on_path(store, branch.head) == ["one", "1", "other two", "2b"]
    assert await said_on_path(store, second.head) == ["one", "1", "two", "2"]
    assert await said_in(store) == ["one", "1", "other two", "2b"]


async def test_a_rooted_run_begins_anew(store: Store) -> None:
    """A client that sends its own history does not add to the stored one."""
    await whole_run(store, run_record(said="one"), "1")
    rooted = await whole_run(store, run_record(said="fresh", rooted=True), "2")
    assert await said_on_path(store, rooted.head) == ["fresh", "2"]


async def test_a_run_without_messages_stands_where_it_began(store: Store) -> None:
    """P6.a: what continues from it continues from there."""
    first = await whole_run(store, run_record())
    record = run_record(conversation="holiday")
    await store.create_run(record)
    ending = an_ending(record, messages=())
    await store.end_run(record.id, last_batch(0, ending), ending)
    kept = await store.get_run(record.id)
    conversation = await store.get_conversation("holiday")
    assert kept is not None and conversation is not None
    assert kept.head == conversation.head == first.head


async def test_a_run_without_messages_whose_parent_is_gone_stands_nowhere(store: Store) -> None:
    """It does not point at a message that was deleted while it was going."""
    first = await whole_run(store, run_record())
    live = run_record(parent=first.head)
    await store.create_run(live)
    await store.delete_session(SESSION)
    ending = an_ending(live, messages=())
    await store.end_run(live.id, last_batch(0, ending), ending)
    kept = await store.get_run(live.id)
    assert kept is not None and kept.head is None


async def test_a_session_is_made_by_its_first_run_and_moves_with_each(store: Store) -> None:
    """J2.b: title, times, count and newest message."""
    record = run_record(said="  What \n is " + "x" * 100, created_at=100.0)
    await store.create_run(record)
    made = await store.get_session(SESSION)
    assert made == SessionRecord(
        id=SESSION, created_at=100.0, updated_at=100.0, title="What is " + "x" * 52, head=None, runs=1
    )
    ending = an_ending(record, ended_at=160.0)
    await store.end_run(record.id, last_batch(0, ending), ending)
    kept = await store.get_run(record.id)
    moved = await store.get_session(SESSION)
    assert kept is not None and moved is not None and made is not None
    assert moved == msgspec.structs.replace(made, updated_at=160.0, head=kept.head)
    await store.create_run(run_record(said="again", created_at=150.0))
    later = await store.get_session(SESSION)
    assert later is not None
    assert (later.title, later.updated_at, later.runs) == (moved.title, 160.0, 2)
    assert await store.get_session(SessionId("unknown")) is None


async def test_a_session_is_named_after_the_first_words_of_its_user(store: Store) -> None:
    """J2.b: not after an assistant's, nor after a picture."""
    picture = UserMessage(parts=(Image(url="data:image/png;base64,AAAA"),))
    said = (assistant_says("How can I help?"), picture, user_says("Name this bird"), user_says("and that"))
    await store.create_run(msgspec.structs.replace(run_record(), input=said))
    session = await store.get_session(SESSION)
    assert session is not None and session.title == "Name this bird"


async def test_a_session_can_be_made_named_and_described(store: Store) -> None:
    """J2.a, J2.b: creating, and changing title and metadata only."""
    record = SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0, title="", metadata={"colour": ["red"]})
    await store.put_session(record)
    assert await store.get_session(SESSION) == record
    await whole_run(store, run_record(said="hello there", created_at=5.0))
    session = await store.get_session(SESSION)
    assert session is not None and session.title == "hello there"
    changed = SessionRecord(id=SESSION, created_at=99.0, updated_at=99.0, title="Mine", metadata={})
    await store.put_session(changed)
    assert await store.get_session(SESSION) == msgspec.structs.replace(session, title="Mine", metadata={})
    await whole_run(store, run_record(said="more"))
    session = await store.get_session(SESSION)
    assert session is not None and session.title == "Mine"


async def test_sessions_are_listed_the_last_used_first_and_found_by_title_and_id(store: Store) -> None:
    """J2.a: list, search, pages."""
    titles = ["Über Äpfel", "100% _sure_", "日本の旅", "plain"]
    for number, title in enumerate(titles):
        session = SessionId(f"Session-{number}")
        await store.put_session(SessionRecord(id=session, created_at=1.0, updated_at=float(number), title=title))

    async def found(search: str, limit: int = 10, offset: int = 0) -> list[str]:
        chosen = SessionFilter(search=search, limit=limit, offset=offset)
        return [session.title for session in await store.list_sessions(chosen)]

    assert await found("") == titles[::-1]
    assert await found("", 2, 1) == titles[2:0:-1]
    assert await found("", 2, 10) == []
    assert await found("über") == await found("ÄPFEL") == [titles[0]]
    assert await found("%") == await found("_SURE_") == [titles[1]]
    assert await found("本の") == [titles[2]]
    assert await found("session-3") == [titles[3]]
    assert await found("session") == titles[::-1]
    assert await found("nothing") == []
    await store.create_run(run_record(session="Session-0", created_at=50.0))
    assert (await found(""))[0] == titles[0]


@pytest.mark.parametrize("search", ["", "s"])
async def test_sessions_of_the_same_moment_are_listed_the_newest_first(store: Store, search: str) -> None:
    """J2.a: an order that does not change by itself."""
    for number in range(5):
        await store.put_session(SessionRecord(id=SessionId(f"s{number}"), created_at=1.0, updated_at=1.0))
    listed = await store.list_sessions(SessionFilter(search=search))
    assert [session.id for session in listed] == ["s4", "s3", "s2", "s1", "s0"]


@pytest.mark.parametrize("search", ["", "s"])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["all of one moment", "one after another"])
async def test_pages_of_sessions_neither_miss_nor_repeat_anything_while_others_write(
    store: Store, search: str, spread: float
) -> None:
    """J2.a: between two pages sessions are made, used and deleted, the last one of the page before among them."""
    names = [SessionId(f"s{number:02d}") for number in range(30)]
    for number, name in enumerate(names):
        await store.put_session(SessionRecord(id=name, created_at=1.0, updated_at=1.0 + spread * number))
    seen: list[SessionId] = []
    touched: set[SessionId] = set()
    place: SessionPlace | None = None
    while page := await store.list_sessions(SessionFilter(search=search, before=place, limit=4)):
        seen += [session.id for session in page]
        last, unseen = page[-1], [name for name in names if name not in seen]
        place = SessionPlace(updated_at=last.updated_at, id=last.id)
        await store.put_session(SessionRecord(id=SessionId(f"s-new-{len(seen)}"), created_at=1e6, updated_at=1e6))
        used = [page[0].id, last.id, *unseen[:1]]
        for name in used:
            await store.create_run(run_record(session=name, created_at=1e6 + len(seen)))
        gone = [page[1].id, *unseen[1:2]]
        for name in gone:
            await store.delete_session(name)
        touched |= {*used, *gone}
    assert len(seen) == len(set(seen)), "something was repeated"
    assert {name for name in names if name not in touched} <= set(seen), "something was missed"


async def test_a_session_is_found_by_the_title_that_its_first_run_gave_it(store: Store) -> None:
    """J2.a: also when the session was there before, without one; and by none that it does not have."""
    await store.put_session(SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0))
    for said in ("Über Äpfel", "about pears"):
        await store.create_run(run_record(said=said))
    assert [session.id for session in await store.list_sessions(SessionFilter(search="äpfel"))] == [SESSION]
    assert await store.list_sessions(SessionFilter(search="pears")) == []
    await store.put_session(SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0, title="Plums"))
    assert [session.id for session in await store.list_sessions(SessionFilter(search="plums"))] == [SESSION]
    assert await store.list_sessions(SessionFilter(search="äpfel")) == []


async def test_a_deleted_session_is_gone_with_its_messages_runs_and_names(store: Store) -> None:
    """J2.b: forget a session; others are left alone."""
    kept = await whole_run(store, run_record(surface="responses", conversation="holiday"))
    other = await whole_run(store, run_record(session="other"))
    assert await store.delete_session(SESSION)
    assert not await store.delete_session(SESSION)
    assert await store.get_session(SESSION) is None
    assert kept.head is not None
    assert await store.path(kept.head) == []
    assert await store.get_run(kept.id) is None
    assert await whole_log(store, kept.id) == []
    assert not await store.use_response(kept.id)
    assert await store.get_conversation("holiday") is None
    assert [run.id for run in await store.list_runs(RunFilter())] == [other.id]
    assert await said_in(store, "other") == ["hello", "hi"]


async def test_a_message_id_is_never_used_again(store: Store) -> None:
    """An old reference finds nothing, not somebody else's words."""
    kept = await whole_run(store, run_record())
    await store.delete_session(SESSION)
    again = await whole_run(store, run_record(session="other"))
    assert kept.head is not None and again.head is not None and again.head > kept.head


async def test_a_session_that_comes_back_counts_the_runs_that_were_going_and_are_kept(store: Store) -> None:
    """J2.b: not those of which nothing is kept."""
    live, other, passing = run_record(), run_record(), run_record(ephemeral=True)
    for record in (live, other, passing):
        await store.create_run(record)
    await store.delete_session(SESSION)
    ending = an_ending(live)
    await store.end_run(live.id, last_batch(0, ending), ending)
    session = await store.get_session(SESSION)
    assert session is not None and session.runs == 2


@pytest.mark.parametrize("named", [False, True])
async def test_a_run_that_outlives_its_session_still_saves_its_answer(store: Store, named: bool) -> None:
    """R6.a: the session was deleted while the run was going: it comes back with this answer alone."""
    before = await whole_run(store, run_record(said="old"), "old")
    live = run_record(said="new", parent=before.head if named else None, surface="responses")
    await store.create_run(live)
    await append(store, live.id, started(live))
    assert await store.delete_session(SESSION)
    assert [run.id for run in await store.list_runs(RunFilter())] == [live.id]
    assert await store.use_response(live.id)
    ending = an_ending(live, "still here")
    await store.end_run(live.id, last_batch(1, ending), ending)
    assert await said_in(store) == ["new", "still here"]
    session = await store.get_session(SESSION)
    assert session is not None and (session.runs, session.title) == (1, "new")


async def test_a_fork_has_the_same_past_and_a_future_of_its_own(store: Store) -> None:
    """J2.d: copied, not shared: neither sees what is added to the other, nor what is deleted."""
    first = await whole_run(store, run_record(said="one"), "1")
    await whole_run(store, run_record(said="two"), "2")
    whole = SessionRecord(id=SessionId("whole"), created_at=7.0, updated_at=7.0, title="Fork", metadata={"a": 1})
    part = SessionRecord(id=SessionId("part"), created_at=7.0, updated_at=7.0)
    assert await store.fork_session(SESSION, whole, None)
    assert await store.fork_session(SESSION, part, first.head)
    made = await store.get_session(whole.id)
    assert made is not None
    assert made == msgspec.structs.replace(whole, head=made.head)
    await whole_run(store, run_record(said="mine", session="whole"), "M")
    await whole_run(store, run_record(said="three"), "3")
    await store.delete_session(SESSION)
    assert await said_in(store, "whole") == ["one", "1", "two", "2", "mine", "M"]
    assert await said_in(store, "part") == ["one", "1"]


async def test_a_forks_messages_are_the_originals_but_for_their_ids(store: Store) -> None:
    """J2.d: which run said each, and when, is copied too; so an answer in a copy still leads to its log."""
    first = await whole_run(store, run_record(said="one"), "1", ended_at=130.0)
    last = await whole_run(store, run_record(said="two", created_at=200.0), "2", ended_at=230.0)
    assert first.head is not None and last.head is not None
    for name, at, head in (("whole", None, last.head), ("part", first.head, first.head)):
        into = SessionRecord(id=SessionId(name), created_at=700.0, updated_at=700.0)
        assert await store.fork_session(SESSION, into, at)
        made = await store.get_session(into.id)
        assert made is not None and made.head is not None
        originals, copies = await store.path(head), await store.path(made.head)
        assert {stored.id for stored in originals}.isdisjoint(stored.id for stored in copies)
        assert [without_id(stored) for stored in copies] == [without_id(stored) for stored in originals]
    assert [(stored.run, stored.created_at) for stored in await store.path(last.head)] == [
        (first.id, 100.0),
        (first.id, 130.0),
        (last.id, 200.0),
        (last.id, 230.0),
    ]


def without_id(stored: StoredMessage) -> StoredMessage:
    return msgspec.structs.replace(stored, id=NOWHERE)


async def test_a_fork_needs_a_session_a_message_of_it_and_a_new_name(store: Store) -> None:
    """J2.d: nothing is made where there is nothing to copy."""
    await whole_run(store, run_record())
    other = await whole_run(store, run_record(session="other"))
    into = SessionRecord(id=SessionId("into"), created_at=7.0, updated_at=7.0)
    assert not await store.fork_session(SessionId("unknown"), into, None)
    assert not await store.fork_session(SESSION, into, NOWHERE)
    assert not await store.fork_session(SESSION, into, other.head)
    assert await store.get_session(into.id) is None
    with pytest.raises(LogConflictError):
        await store.fork_session(SESSION, msgspec.structs.replace(into, id=SessionId("other")), None)
    assert await said_in(store, "other") == ["hello", "hi"]


async def test_an_empty_session_can_be_forked(store: Store) -> None:
    """J2.d: a fork of nothing is empty."""
    await store.put_session(SessionRecord(id=SESSION, created_at=1.0, updated_at=1.0))
    into = SessionRecord(id=SessionId("into"), created_at=7.0, updated_at=7.0)
    assert await store.fork_session(SESSION, into, None)
    assert await store.get_session(into.id) == into


async def test_a_response_is_kept_from_its_creation_until_it_is_deleted(store: Store) -> None:
    """P4.a: a run of the responses surface, and no other."""
    record = run_record(surface="responses")
    await store.create_run(record)
    assert await store.use_response(record.id)
    chat = await whole_run(store, run_record(surface="chat"))
    assert not await store.use_response(chat.id)
    assert not await store.delete_response(chat.id)
    assert await store.delete_response(record.id)
    assert not await store.delete_response(record.id)
    assert not await store.use_response(record.id)
    assert not await store.use_response(RunId("run_unknown"))
    assert await store.get_run(record.id) == record


async def test_the_least_recently_used_responses_are_evicted(store: Store) -> None:
    """P11.a, P11.b, P11.c: reading refreshes; evicting drops the names that pointed there."""
    runs = [await whole_run(store, run_record(surface="responses", conversation=f"c{n}")) for n in range(6)]
    assert await store.use_response(runs[1].id)
    assert await store.use_response(runs[0].id)
    assert await store.evict_responses(6) == 0
    assert await store.evict_responses(4) == 2
    kept = [run for run in runs if run not in (runs[2], runs[3])]
    for run, name in zip(runs, [f"c{n}" for n in range(6)], strict=True):
        assert (await store.get_conversation(name) is not None) == (run in kept)
    assert await store.evict_responses(1) == 3
    # c0 was used last of all.
    assert [await store.use_response(run.id) for run in runs] == [True, *[False] * 5]
    assert await store.evict_responses(0) == 1
    assert [run.id for run in await store.list_runs(RunFilter())] == [run.id for run in reversed(runs)]


async def test_a_conversation_stands_at_the_end_of_its_last_response(store: Store) -> None:
    """P6.a, P6.c: conversations continue, and are isolated."""
    one = await whole_run(store, run_record(said="one", conversation="a", session="sa", surface="responses"), "1")
    await whole_run(store, run_record(said="zero", conversation="b", session="sb", surface="responses"), "0")
    conversation = await store.get_conversation("a")
    assert conversation == ConversationRecord(name="a", created_at=one.created_at, head=one.head, run=one.id)
    two = await whole_run(
        store, run_record(said="two", conversation="a", session="sa", parent=one.head, surface="responses"), "2"
    )
    conversation = await store.get_conversation("a")
    assert conversation is not None and conversation.run == two.id
    assert await said_on_path(store, conversation.head) == ["one", "1", "two", "2"]
    assert await store.get_conversation("c") is None


async def test_a_deleted_response_drops_the_name_that_pointed_there(store: Store) -> None:
    """P6.d, P11.c: the name starts afresh; a name that has moved on stays."""
    one = await whole_run(store, run_record(conversation="a", surface="responses"))
    two = await whole_run(store, run_record(conversation="a", surface="responses"))
    await store.delete_response(one.id)
    assert await store.get_conversation("a") is not None
    await store.delete_response(two.id)
    assert await store.get_conversation("a") is None


async def test_a_conversation_made_by_hand_is_kept_until_it_is_deleted(store: Store) -> None:
    """Metadata change, eviction and deletion of its responses do not move it."""
    await store.put_conversation(ConversationRecord(name="conv_1", created_at=1.0, metadata={"a": "b"}, kept=True))
    run = await whole_run(store, run_record(conversation="conv_1", surface="responses"))
    moved = ConversationRecord(name="conv_1", created_at=1.0, head=run.head, run=run.id, metadata={"a": "b"}, kept=True)
    assert await store.get_conversation("conv_1") == moved
    await store.put_conversation(ConversationRecord(name="conv_1", created_at=9.0, metadata={"c": "d"}))
    changed = msgspec.structs.replace(moved, metadata={"c": "d"})
    assert await store.get_conversation("conv_1") == changed
    assert await store.evict_responses(0) == 1
    assert await store.get_conversation("conv_1") == changed
    await store.delete_run(run.id)
    assert await store.get_conversation("conv_1") == changed
    await store.delete_session(SESSION)
    assert await store.get_conversation("conv_1") == msgspec.structs.replace(changed, head=None, run=None)
    assert await store.delete_conversation("conv_1")
    assert not await store.delete_conversation("conv_1")
    assert await store.get_conversation("conv_1") is None


async def test_messages_are_added_to_a_conversation_without_a_run(store: Store) -> None:
    """P6.a, P6.c: below its own newest message, and runs go on from there."""
    await store.put_conversation(ConversationRecord(name="conv_1", created_at=1.0, kept=True))
    added = await store.add_messages("conv_1", SESSION, [user_says("one"), assistant_says("1")])
    assert [stored.message for stored in added] == [user_says("one"), assistant_says("1")]
    assert await store.path(added[-1].id) == added
    more = await store.add_messages("conv_1", SESSION, [user_says("two")])
    conversation = await store.get_conversation("conv_1")
    assert conversation is not None and conversation.head == more[-1].id and conversation.kept
    session = await store.get_session(SESSION)
    assert session is not None and session.head == more[-1].id
    assert await said_on_path(store, conversation.head) == ["one", "1", "two"]
    assert await store.add_messages("conv_1", SESSION, []) == []
    await whole_run(store, run_record(said="three", parent=conversation.head, conversation="conv_1"), "3")
    conversation = await store.get_conversation("conv_1")
    assert conversation is not None
    assert await said_on_path(store, conversation.head) == ["one", "1", "two", "three", "3"]
    await store.add_messages("conv_2", SESSION, [user_says("elsewhere")])
    conversation = await store.get_conversation("conv_2")
    assert conversation is not None and not conversation.kept
    assert await said_on_path(store, conversation.head) == ["elsewhere"]


async def test_ends_on_one_session_at_once_form_one_line(store: Store) -> None:
    """R6.a: whatever order they are saved in, every answer is on the path once."""
    records = [run_record(said=f"q{number}") for number in range(10)]
    for record in records:
        await store.create_run(record)
    endings = [an_ending(record, f"a{number}") for number, record in enumerate(records)]
    await asyncio.gather(
        *(
            store.end_run(record.id, last_batch(0, ending), ending)
            for record, ending in zip(records, endings, strict=True)
        )
    )
    said = await said_in(store)
    assert sorted(said) == sorted(f"{letter}{number}" for letter in "qa" for number in range(10))
    assert all(said[at + 1] == "a" + said[at][1:] for at in range(0, 20, 2))


async def test_a_long_path_is_read_whole(store: Store) -> None:
    """P5.a: thousands of messages are no trouble."""
    added = await store.add_messages("long", SESSION, [user_says(str(number)) for number in range(3000)])
    assert await store.path(added[-1].id) == added
