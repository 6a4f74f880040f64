"""Sessions, messages, responses and conversation names in memory (C13, J2, P4-P6, P11): one of the port's three parts.

The twin of sqlite/conversations.py. Sits on tables.py, and on messages.py for messages.
"""

from collections.abc import Sequence

import msgspec

from holdfast.clock import Clock
from holdfast.ids import NodeId, RunId, SessionId
from holdfast.messages import Message
from holdfast.owners import bare_name, owner_of
from holdfast.store.memory.messages import add_messages, read_path, use_session
from holdfast.store.memory.runs import delete_runs, drop_responses
from holdfast.store.memory.tables import Tables
from holdfast.store.records import ConversationRecord, SessionFilter, SessionRecord, StoredMessage
from holdfast.store.refusals import session_exists
from holdfast.store.search_terms import casefold_text

_replace = msgspec.structs.replace


class MemoryConversations:
    """Everything that messages are found by."""

    _tables: Tables
    _clock: Clock

    async def path(self, node: NodeId) -> list[StoredMessage]:
        """The messages from the root to a node."""
        return self._tables.read(read_path(self._tables, node))

    async def message_owner(self, node: NodeId) -> str | None:
        """S12: whose a message is; None: there is none."""
        found = self._tables.read(self._tables.nodes.get(node))
        return None if found is None else owner_of(found.session)

    async def get_session(self, session: SessionId) -> SessionRecord | None:
        """One session."""
        return self._tables.read(self._tables.sessions.get(session))

    async def list_sessions(self, chosen: SessionFilter) -> list[SessionRecord]:
        """Sessions, the last used first, and by id where two were used at the same time."""
        wanted, before = casefold_text(chosen.search), chosen.before
        found = [
            session
            for session in self._tables.read(self._tables.sessions).values()
            if chosen.owner in (None, owner_of(session.id))
            and (wanted in casefold_text(session.title) or wanted in casefold_text(bare_name(session.id)))
            and (before is None or (session.updated_at, session.id) < (before.updated_at, before.id))
        ]
        found.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        return found[chosen.offset : chosen.offset + chosen.limit]

    async def put_session(self, record: SessionRecord) -> None:
        """Create it, or change its title and metadata."""
        await self._tables.change(lambda: _put_session(self._tables, record))

    async def delete_session(self, session: SessionId) -> bool:
        """Forget a session, its messages, and its ended runs with their logs; False: there was none."""
        tables = self._tables

        def delete() -> bool:
            if tables.sessions.pop(session, None) is None:
                return False
            # A run that is still going stays: when it ends its answer is saved, and its session with it.
            runs = [run.record for run in tables.runs.values() if run.record.session == session]
            delete_runs(tables, [record.id for record in runs if record.ended_at is not None])
            gone = {node for node, kept in tables.nodes.items() if kept.session == session}
            for name, conversation in list(tables.conversations.items()):
                if conversation.head in gone and conversation.kept:
                    tables.conversations[name] = _replace(conversation, head=None, run=None)
                elif conversation.head in gone:
                    del tables.conversations[name]
            for node in gone:
                del tables.nodes[node]
            return True

        return await tables.change(delete)

    async def fork_session(self, session: SessionId, into: SessionRecord, at: NodeId | None) -> bool:
        """Copy a session's path (to `at`, or to its newest message) into a new session.

        Returns:
            False: there is no such session, or `at` is no message of it.

        Raises:
            LogConflictError: there is a session of the new id.
        """
        tables = self._tables

        def fork() -> bool:
            source = tables.sessions.get(session)
            if source is None or (at is not None and (at not in tables.nodes or tables.nodes[at].session != session)):
                return False
            if into.id in tables.sessions:
                raise session_exists(into.id)
            _put_session(tables, into)
            path = read_path(tables, source.head if at is None else at)
            add_messages(tables, into.id, None, [(stored.run, stored.created_at, stored.message) for stored in path])
            return True

        return await tables.change(fork)

    async def use_response(self, run: RunId) -> bool:
        """Is it kept as a response (P4)? Refreshes its place among the most recently used (P11)."""
        responses = self._tables.responses

        def use() -> bool:
            if run not in responses:
                return False
            responses[run] = responses.pop(run)
            return True

        return await self._tables.change(use)

    async def delete_response(self, run: RunId) -> bool:
        """Forget it as a response, and the conversation names that point there; False: it was none."""
        tables = self._tables

        def delete() -> bool:
            known = run in tables.responses
            drop_responses(tables, {run} if known else set())
            return known

        return await tables.change(delete)

    async def evict_responses(self, keep: int) -> int:
        """Forget the least recently used responses beyond `keep`; how many."""
        tables = self._tables

        def evict() -> int:
            old = list(tables.responses)[: max(0, len(tables.responses) - max(0, keep))]
            drop_responses(tables, set(old))
            return len(old)

        return await tables.change(evict)

    async def get_conversation(self, name: str) -> ConversationRecord | None:
        """Where a conversation stands."""
        return self._tables.read(self._tables.conversations.get(name))

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Create it, or change its metadata; never moves it."""
        tables = self._tables

        def put() -> None:
            known = tables.conversations.get(record.name) or record
            kept = known.kept or record.kept
            tables.conversations[record.name] = _replace(known, metadata=record.metadata, kept=kept)

        await tables.change(put)

    async def delete_conversation(self, name: str) -> bool:
        """Forget a name; False: there was none."""
        return await self._tables.change(lambda: self._tables.conversations.pop(name, None) is not None)

    async def add_messages(self, name: str, session: SessionId, messages: Sequence[Message]) -> list[StoredMessage]:
        """Add messages to a conversation without a run; a name that is new begins with them."""
        tables = self._tables

        def add() -> list[StoredMessage]:
            now = self._clock.now()
            known = tables.conversations.get(name) or ConversationRecord(name=name, created_at=now)
            above = known.head if known.head in tables.nodes else None
            use_session(tables, session, now)
            added = add_messages(tables, session, above, [(None, now, message) for message in messages])
            tables.conversations[name] = _replace(known, head=added[-1].id if added else above)
            return added

        return await tables.change(add)

    async def put_message(self, node: NodeId, message: Message) -> bool:
        """Put another message in the place of a stored one; False: there is no such place."""
        nodes = self._tables.nodes

        def put() -> bool:
            if (known := nodes.get(node)) is None:
                return False
            nodes[node] = _replace(known, stored=_replace(known.stored, message=message))
            return True

        return await self._tables.change(put)


def _put_session(tables: Tables, record: SessionRecord) -> None:
    known = tables.sessions.get(record.id) or _replace(record, head=None, runs=0)
    tables.sessions[record.id] = _replace(known, title=record.title, metadata=record.metadata)
