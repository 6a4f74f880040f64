"""The store as one owner sees it (S12): their own names, and nothing of anybody else's.

A `Kept` over any store: names that come in get the owner's
beginning, those that go out lose it, and what is found by a number or a run's id is looked up with whose it is. So no
handler can forget: it is handed this instead of the store. Whatever a method does not have an owner's view of is not
here. Sits on the port.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, TypeVar

import msgspec

from holdfast.events import Batch
from holdfast.ids import EventNumber, NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.owners import bare_name, owned_name
from holdfast.store.accounts import KeyLimits
from holdfast.store.port import Store
from holdfast.store.records import (
    ConversationRecord,
    MemoryRecord,
    RunFilter,
    RunRecord,
    SessionFilter,
    SessionRecord,
    StoredMessage,
)

_replace = msgspec.structs.replace
UNLIMITED: Final = KeyLimits()
Named = TypeVar("Named", bound=str)


class OwnedStore:
    """One owner's view. An admin's is everything, under the names that it is stored by."""

    def __init__(self, store: Store, owner: str, limits: KeyLimits = UNLIMITED) -> None:
        self._store = store
        self._owner = owner
        self._limits = limits

    # Names

    def _in(self, name: Named) -> Named:
        return owned_name(self._owner, name)

    def _out(self, name: Named) -> Named:
        return bare_name(name) if self._owner else name

    def shown_run(self, record: RunRecord) -> RunRecord:
        """A run with the names that its owner knows."""
        if not self._owner:
            return record
        conversation = None if record.conversation is None else self._out(record.conversation)
        return _replace(record, session=self._out(record.session), conversation=conversation)

    def _shown_session(self, record: SessionRecord) -> SessionRecord:
        return _replace(record, id=self._out(record.id))

    def _shown_conversation(self, record: ConversationRecord) -> ConversationRecord:
        return _replace(record, name=self._out(record.name))

    # Whose it is

    async def has_run(self, run: RunId) -> bool:
        """Is there such a run, for this owner?"""
        owner = await self._store.run_owner(run)
        return owner is not None and (not self._owner or owner == self._owner)

    async def _has_message(self, node: NodeId) -> bool:
        owner = await self._store.message_owner(node)
        return owner is not None and (not self._owner or owner == self._owner)

    def _room(self, added: object) -> AbstractAsyncContextManager[None]:
        """S12: room for what is written in the block; raises RequestError (507) where a key may keep no more."""
        if self._limits.stored_bytes is None:
            return nullcontext()
        return self._store.room_for(self._owner, self._limits, len(msgspec.json.encode(added)))

    # Runs

    async def get_run(self, run: RunId) -> RunRecord | None:
        """One run of theirs."""
        record = await self._store.get_run(run)
        if record is None or (self._owner and record.owner != self._owner):
            return None
        return self.shown_run(record)

    async def list_runs(self, chosen: RunFilter) -> list[RunRecord]:
        """Their runs, newest first."""
        if self._owner:
            session = None if chosen.session is None else self._in(chosen.session)
            chosen = _replace(chosen, owner=self._owner, session=session)
        return [self.shown_run(record) for record in await self._store.list_runs(chosen)]

    async def read_log(self, run: RunId, after: EventNumber, limit: int) -> list[Batch]:
        """As `RunLog.read_log`; of somebody else's there is none."""
        return await self._store.read_log(run, after, limit) if await self.has_run(run) else []

    # Messages, and what finds them

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node of theirs."""
        return await self._store.path(node) if await self._has_message(node) else []

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""
        record = await self._store.get_session(self._in(session))
        return None if record is None else self._shown_session(record)

    async def list_sessions(self, chosen: SessionFilter) -> list[SessionRecord]:
        """Their sessions, the last used first."""
        if self._owner:
            before = None if chosen.before is None else _replace(chosen.before, id=self._in(chosen.before.id))
            chosen = _replace(chosen, owner=self._owner, before=before)
        return [self._shown_session(record) for record in await self._store.list_sessions(chosen)]

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        async with self._room((record.metadata, record.title, record.title)):
            await self._store.put_session(_replace(record, id=self._in(record.id)))

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session; False: there was none."""
        return await self._store.delete_session(self._in(session))

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """As `Conversations.fork_session`."""
        copied: list[Message] = []
        source = await self.get_session(session)
        if self._limits.stored_bytes is not None and source is not None and source.head is not None:
            copied = [stored.message for stored in await self.path(source.head)]
        async with self._room(copied):
            return await self._store.fork_session(self._in(session), _replace(into, id=self._in(into.id)), at)

    async def use_response(self, run: RunId) -> bool:
        """As `Conversations.use_response`; somebody else's is not even refreshed."""
        return await self.has_run(run) and await self._store.use_response(run)

    async def delete_response(self, run: RunId) -> bool:
        """As `Conversations.delete_response`."""
        return await self.has_run(run) and await self._store.delete_response(run)

    async def evict_responses(self, keep: int) -> int:
        """The limit is the server's, over all owners (P11)."""
        return await self._store.evict_responses(keep)

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""
        record = await self._store.get_conversation(self._in(name))
        return None if record is None else self._shown_conversation(record)

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata."""
        async with self._room(record.metadata):
            await self._store.put_conversation(_replace(record, name=self._in(record.name)))

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""
        return await self._store.delete_conversation(self._in(name))

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """As `Conversations.add_messages`."""
        async with self._room(messages):
            return await self._store.add_messages(self._in(name), self._in(session), messages)

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of one of theirs; False: there is no such place."""
        return await self._has_message(node) and await self._store.put_message(node, message)

    # Memories

    async def remember(self, scope: str, text: str) -> MemoryRecord:
        """Keep a text."""
        async with self._room(text):
            return await self._store.remember(self._in(scope), text)

    async def recall(self, scope: str, query: str, limit: int) -> list[MemoryRecord]:
        """The best matches."""
        return await self._store.recall(self._in(scope), query, limit)
