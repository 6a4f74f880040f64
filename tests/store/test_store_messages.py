"""Changing a message that is stored, over every store."""

from holdfast.ids import NodeId, SessionId
from holdfast.messages import user_says
from holdfast.store.port import Store


async def test_a_message_is_changed_in_its_place_and_nothing_else_is(store: Store) -> None:
    """An item that is taken out of a conversation leaves the others, their ids and their order alone."""
    added = await store.add_messages("talk", SessionId("s"), [user_says("a"), user_says("b"), user_says("c")])
    assert await store.put_message(added[1].id, user_says("B"))
    path = await store.path(added[2].id)
    assert [stored.message for stored in path] == [user_says("a"), user_says("B"), user_says("c")]
    assert [(stored.id, stored.created_at) for stored in path] == [(stored.id, stored.created_at) for stored in added]
    assert not await store.put_message(NodeId(999_999), user_says("x"))
