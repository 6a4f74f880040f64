"""Runs as the owner of a key sees them (S12): their own, under their own names.

What a handler is given instead of the supervisor, for whoever is not the admin. Whatever is asked for is looked up with
whose it is, and what begins here carries its owner in every name that it is stored and found by: session, conversation,
memory, idempotency key and fingerprint. Sits on the supervisor and the owned store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_started
from typing import Protocol

import msgspec

from holdfast.agents.request import RunRequest
from holdfast.errors import NotFoundError
from holdfast.events import ApprovedBy
from holdfast.ids import BEFORE_FIRST, CallId, EventNumber, RunId, SessionId
from holdfast.messages import UserMessage
from holdfast.owners import owned_name
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.start import Started
from holdfast.runs.supervisor import Supervisor
from holdfast.runs.team.caller import Caller
from holdfast.runs.team.keyring import Keyring
from holdfast.runs.view import RunView
from holdfast.store.owned import OwnedStore
from holdfast.store.records import IdempotencyKey, RunRecord
from holdfast.upstream.port import ModelCall

_replace = msgspec.structs.replace


class Runs(Protocol):
    """What a request does with runs: everybody's, or its own. The supervisor says what each of these is."""

    def preview(self, request: RunRequest) -> ModelCall:
        """What a model would be asked."""
        ...

    async def start(self, request: RunRequest, key: IdempotencyKey | None = None) -> Started:
        """Start a run, or find the one that has its key."""
        ...

    async def attach(self, run: RunId) -> Started:
        """A run that the same request has started before."""
        ...

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started."""
        ...

    async def find(self, run: RunId) -> RunView | None:
        """A run; None: there is none."""
        ...

    async def get(self, run: RunId) -> RunView:
        """A run. Raises NotFoundError."""
        ...

    def view(self, record: RunRecord) -> RunView:
        """A run of which the record is at hand."""
        ...

    async def look(self, record: RunRecord) -> RunView | None:
        """The same, wherever it is; None: it was deleted meanwhile."""
        ...

    async def active_run(self, session: SessionId) -> RunView | None:
        """The run that a session is busy with."""
        ...

    async def active_runs(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunId]:
        """The runs that sessions are busy with."""
        ...

    async def subscribe(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """Read a run's log."""
        ...

    async def stop(self, run: RunId) -> bool:
        """Interrupt a run."""
        ...

    async def stop_session(self, session: SessionId) -> None:
        """Stop all that is going on in a session."""
        ...

    async def answer_approval(
        self, run: RunId, call: CallId | None, approved: bool, by: ApprovedBy = "client"
    ) -> CallId:
        """Approve or deny a call."""
        ...

    async def steer(self, run: RunId, message: UserMessage) -> None:
        """Say something to a run."""
        ...


class OwnedRuns:
    """One caller's runs."""

    def __init__(self, supervisor: Supervisor, store: OwnedStore, caller: Caller, keyring: Keyring) -> None:
        self._supervisor = supervisor
        self._store = store
        self._caller = caller
        self._keyring = keyring

    def _in(self, request: RunRequest) -> RunRequest:
        """A request with the names that it is stored by."""
        owner = self._caller.owner
        scope, talk = request.memory_scope, request.conversation
        return _replace(
            request,
            asked_by=self._caller.name,
            session=owned_name(owner, request.session),
            memory_scope=owned_name(owner, scope) if scope else "",
            conversation=None if talk is None else owned_name(owner, talk),
            fingerprint=owned_name(owner, request.fingerprint) if request.fingerprint else "",
        )

    def _watched(self, subscription: Subscription) -> Subscription:
        """Cut off when the key is revoked or expires."""
        self._keyring.watch(self._caller, subscription)
        return subscription

    def _shown(self, view: RunView) -> RunView:
        return view.shown_as(self._store.shown_run(view.record)) if self._caller.owner else view

    def _started(self, started: Started) -> Started:
        self._watched(started.subscription)
        return replace_started(started, record=self._store.shown_run(started.record))

    async def _require(self, run: RunId) -> None:
        if not await self._has(run):
            raise NotFoundError(f"There is no run {run}.", code="run_not_found")

    async def _has(self, run: RunId) -> bool:
        live = self._supervisor.registry.get(run)
        if live is not None:
            # One that is going on here may not be saved yet.
            return not self._caller.owner or live.record.owner == self._caller.owner
        return await self._store.has_run(run)

    def preview(self, request: RunRequest) -> ModelCall:
        """What a model would be asked, were this request run now; nothing is."""
        return self._supervisor.preview(self._in(request))

    async def start(self, request: RunRequest, key: IdempotencyKey | None = None) -> Started:
        """Start a run; raises as `Supervisor.start`."""
        owned = None if key is None else _replace(key, key=owned_name(self._caller.owner, key.key))
        allowance = self._keyring.allowance(self._caller, request)
        return self._started(await self._supervisor.start(self._in(request), owned, allowance))

    async def attach(self, run: RunId) -> Started:
        """A run that the same request has started before. Raises NotFoundError."""
        await self._require(run)
        return self._started(await self._supervisor.attach(run))

    async def find_request(self, fingerprint: str) -> RunId | None:
        """A run that the same request has started."""
        return await self._supervisor.find_request(owned_name(self._caller.owner, fingerprint))

    async def find(self, run: RunId) -> RunView | None:
        """A run of theirs."""
        view = await self._supervisor.find(run) if await self._has(run) else None
        return None if view is None else self._shown(view)

    async def get(self, run: RunId) -> RunView:
        """A run of theirs. Raises NotFoundError."""
        await self._require(run)
        return self._shown(await self._supervisor.get(run))

    def view(self, record: RunRecord) -> RunView:
        """A run of which the record is at hand: what they have is theirs."""
        return self._shown(self._supervisor.view(record))

    async def look(self, record: RunRecord) -> RunView | None:
        """The same, wherever it is."""
        view = await self._supervisor.look(record)
        return None if view is None else self._shown(view)

    async def active_run(self, session: SessionId) -> RunView | None:
        """The run that a session of theirs is busy with."""
        view = await self._supervisor.active_run(owned_name(self._caller.owner, session))
        return None if view is None else self._shown(view)

    async def active_runs(self, sessions: Sequence[SessionId]) -> Mapping[SessionId, RunId]:
        """The runs that sessions of theirs are busy with."""
        owned = {owned_name(self._caller.owner, session): session for session in sessions}
        found = await self._supervisor.active_runs(list(owned))
        return {owned[session]: run for session, run in found.items()}

    async def subscribe(self, run: RunId, after: EventNumber = BEFORE_FIRST) -> Subscription:
        """Read the log of a run of theirs. Raises NotFoundError."""
        await self._require(run)
        return self._watched(await self._supervisor.subscribe(run, after))

    async def stop(self, run: RunId) -> bool:
        """Interrupt a run of theirs; raises as `Supervisor.stop`."""
        await self._require(run)
        return await self._supervisor.stop(run)

    async def stop_session(self, session: SessionId) -> None:
        """Stop all that is going on in a session of theirs."""
        await self._supervisor.stop_session(owned_name(self._caller.owner, session))

    async def answer_approval(
        self, run: RunId, call: CallId | None, approved: bool, by: ApprovedBy = "client"
    ) -> CallId:
        """Approve or deny a call of a run of theirs; raises as `Supervisor.answer_approval`."""
        await self._require(run)
        return await self._supervisor.answer_approval(run, call, approved, by)

    async def steer(self, run: RunId, message: UserMessage) -> None:
        """Say something to a run of theirs; raises as `Supervisor.steer`."""
        await self._require(run)
        await self._supervisor.steer(run, message)
