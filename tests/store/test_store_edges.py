"""Every store at its edges: names whose messages are gone, limits below nothing, short words, what an end leaves."""

import msgspec
import pytest

from holdfast.ids import NodeId
from holdfast.messages import user_says
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.records import TITLE_CHARACTERS, ConversationRecord, make_title
from holdfast.store.search_terms import Term, index_terms, query_terms
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.scalars import MAX_NUMBER, node_of
from tests.store.store_world import SESSION, run_record, said_on_path, whole_run


async def test_what_is_added_to_a_conversation_leaves_its_response_as_it_is(store: Store) -> None:
    """P6.a, P6.d: deleting that response still drops the name; adding nothing moves nothing."""
    run = await whole_run(store, run_record(conversation="a", surface="responses"))
    stands = await store.get_conversation("a")
    assert stands == ConversationRecord(name="a", created_at=run.created_at, head=run.head, run=run.id)
    assert await store.add_messages("a", SESSION, []) == []
    assert await store.get_conversation("a") == stands
    added = await store.add_messages("a", SESSION, [user_says("more")])
    assert await store.get_conversation("a") == msgspec.structs.replace(stands, head=added[-1].id)
    await store.delete_response(run.id)
    assert await store.get_conversation("a") is None


async def test_a_conversation_whose_messages_are_gone_begins_with_what_is_added(store: Store) -> None:
    """P6.d: it does not hang from what is not there."""
    await store.put_conversation(
        ConversationRecord(name="a", created_at=1.0, head=NodeId(999_999), metadata={}, kept=True)
    )
    added = await store.add_messages("a", SESSION, [user_says("new")])
    assert await store.path(added[-1].id) == added
    assert await said_on_path(store, added[-1].id) == ["new"]


async def test_fewer_responses_than_none_cannot_be_kept(store: Store) -> None:
    """P11.a: then there are none, and none are counted that were not there."""
    for _ in range(3):
        await whole_run(store, run_record(surface="responses"))
    assert await store.evict_responses(-1) == 3
    assert await store.evict_responses(-1) == 0


@pytest.mark.parametrize("goes_by", ["its end", "its deletion"])
async def test_what_is_kept_to_go_on_with_a_run_is_gone_with_it(store: Store, goes_by: str) -> None:
    """R15.a, P4.c: no request outlives its run."""
    record = msgspec.structs.replace(run_record(), continuation=b"all that was asked", on_restart="resume")
    if goes_by == "its end":
        await whole_run(store, record)
        assert await store.unfinished_runs() == []
    else:
        await store.create_run(record)
        assert [each.continuation for each in await store.unfinished_runs()] == [b"all that was asked"]
        await store.delete_run(record.id)
    if isinstance(store, SqliteStore):
        left = await store._readers.run(lambda connection: connection.execute("SELECT * FROM continuations").fetchall())
        assert left == []
    elif isinstance(store, MemoryStore):
        assert await store.unfinished_runs() == []


async def test_of_two_memories_that_match_alike_the_newer_comes_first(store: Store) -> None:
    """C14.a: what was said last is what holds."""
    for text in ("the colour is red", "the colour is blue"):
        await store.remember("s", text)
    assert [memory.text for memory in await store.recall("s", "colour", 10)] == [
        "the colour is blue",
        "the colour is red",
    ]
    assert [memory.text for memory in await store.recall("s", "colour", 1)] == ["the colour is blue"]


def test_words_of_three_letters_find_longer_ones_and_pairs_are_whole() -> None:
    """C14.a: two letters are a word; of a script without spaces every pair is looked for, and no lone character."""
    assert [Term(word).is_prefix for word in ("ab", "abc", "abcd", "日")] == [False, True, True, True]
    assert query_terms("日本語") == ["日本", "本語"]
    assert index_terms("日本語") == ["日本", "本語", "語"]
    assert query_terms("日") == ["日"]


@pytest.mark.parametrize(
    ("stored", "node"), [(None, None), (0, None), (-1, None), (1, 1), (MAX_NUMBER, MAX_NUMBER), (MAX_NUMBER + 1, None)]
)
def test_only_what_can_be_the_id_of_a_message_is_one(stored: object, node: int | None) -> None:
    """J2.c: ids begin with 1."""
    assert node_of(stored, "head", "session x") == node


def test_a_title_is_how_a_question_begins_whatever_stands_before_it() -> None:
    """J2.a: white space, however much, is no beginning."""
    assert make_title([user_says(" \n" * 2000 + "Hello  there")]) == "Hello there"
    assert make_title([user_says("x" * 100)]) == "x" * TITLE_CHARACTERS
    assert make_title([user_says(" "), user_says("Second")]) == "Second"
