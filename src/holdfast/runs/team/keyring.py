"""The keys that this server knows (S12): who is behind one, making and revoking them, and cutting off who is gone.

All keys are in memory, by their hash, so that a request costs one lookup. What is changed here holds at once; what
another server on the same store has changed, and what expires, within `LOOK_SECONDS`. A key that is gone takes its
streams along, and its runs, attached or not: they are stopped, on whichever server they are. Above: the middleware and
the endpoints. Below: the registry of runs and the store's port.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from weakref import WeakSet

import msgspec

from holdfast.agents.request import RunRequest
from holdfast.clock import Clock
from holdfast.errors import RequestError, StoreError
from holdfast.outcomes import Cancelled
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.registry import Registry
from holdfast.runs.team.audit import Audit
from holdfast.runs.team.caller import THE_ADMIN, Caller
from holdfast.runs.team.reserve import make_allowance
from holdfast.store.accounts import Allowance, KeyLimits, KeyRecord, Prices
from holdfast.store.port import Store

logger = logging.getLogger(__name__)
_replace = msgspec.structs.replace

LOOK_SECONDS: Final = 1.0
UNKNOWN_SECONDS: Final = 0.25
"""For keys that this server does not know it looks at what others have made, not more often than this."""
SECRET_BYTES: Final = 32
PREFIX: Final = "hf_"


def hash_key(secret: bytes) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret).hexdigest()


def make_secret() -> str:
    """A new key: 256 bits of chance."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


class KeyGoneError(RequestError):
    """The API key was revoked or has expired."""

    status = 401
    code = "invalid_api_key"


class Keyring:
    """Everybody who may ask."""

    def __init__(
        self, store: Store, clock: Clock, *, api_key: str = "", declared: Sequence[KeyRecord] = (), prices: Prices
    ) -> None:
        self._store = store
        self._clock = clock
        self._api_key = api_key.encode()
        self._declared = {key.name: key for key in declared}
        self.prices = prices
        self._by_name: Mapping[str, KeyRecord] = {}
        self._by_hash: Mapping[str, KeyRecord] = {}
        self._readers: dict[str, WeakSet[Subscription]] = {}
        """What is being read with a key, by its name."""
        self._sockets: dict[str, set[Callable[[], None]]] = {}
        self._registry: Registry | None = None
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._looks = 0
        self._looked_at = float("-inf")
        self.audit = Audit(store, clock)

    async def open(self) -> None:
        """Read the keys that are stored. Raises StoreUnavailableError."""
        self._know(await self._store.list_keys())

    def begin(self, registry: Registry, *, asked_by: Sequence[str] = ()) -> None:
        """Watch over runs from now on; `asked_by`: whose are being taken up again."""
        self._registry = registry
        if self._store.is_shared or self._by_name or any(asked_by):
            self.start()

    def start(self) -> None:
        """Begin to look, if it has not; a server without keys need not be woken."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_again(), name="keyring")

    async def aclose(self) -> None:
        """Stop looking, and write what was gathered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            try:
                await self.audit.flush(at_end=True)
            except StoreError as error:
                logger.warning("wrong keys are not in the audit log: %s", error.message)

    def _know(self, stored: Sequence[KeyRecord]) -> None:
        known = {key.name: key for key in stored} | self._declared
        before, self._by_name = self._by_name, known
        self._by_hash = {key.hash: key for key in known.values()}
        for name, key in before.items():
            if name not in known or known[name].hash != key.hash:
                self._cut(name)

    # Who is it?

    @property
    def is_needed(self) -> bool:
        """Is a key needed? As soon as there is one."""
        return bool(self._api_key or self._by_name)

    @property
    def has_admin(self) -> bool:
        """Is there anybody who could make and revoke keys?"""
        return bool(self._api_key) or any(key.role == "admin" for key in self._by_name.values())

    @property
    def keys(self) -> Sequence[KeyRecord]:
        """All of them, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def find(self, given: bytes) -> Caller | None:
        """Who has a key; None: nobody. One that has expired is found: see `is_good`."""
        if self._api_key and hmac.compare_digest(given, self._api_key):
            return THE_ADMIN
        if not self._by_hash:
            return None
        digest = hash_key(given)
        key = self._by_hash.get(digest)
        # How long the lookup takes tells something of a hash at most, and nothing of a key.
        return Caller(key) if key is not None and hmac.compare_digest(key.hash, digest) else None

    async def find_made_elsewhere(self, given: bytes) -> Caller | None:
        """Who has a key that this server does not know: another on the same store may just have made it."""
        if not self._store.is_shared:
            return None
        looks = self._looks
        async with self._looking:
            # Whoever waited for a look that began after it came need not look again.
            if self._looks == looks:
                await self._clock.sleep(max(0.0, self._looked_at + UNKNOWN_SECONDS - self._clock.monotonic()))
                try:
                    await self._look()
                except StoreError as error:
                    logger.warning("the keys cannot be read now: %s", error.message)
        return self.find(given)

    async def _look(self) -> None:
        self._looks += 1
        self._looked_at = self._clock.monotonic()
        self._know(await self._store.list_keys())

    def is_good(self, caller: Caller) -> bool:
        """Has their key not expired, and is it still there?"""
        if caller.key is None:
            return True
        known = self._by_name.get(caller.name)
        return known is not None and known.hash == caller.key.hash and not self._has_expired(known)

    def _has_expired(self, key: KeyRecord) -> bool:
        return key.expires_at is not None and self._clock.now() >= key.expires_at

    def require_good(self, caller: Caller) -> None:
        """A request may take its time: its key is looked at again when it is there. Raises KeyGoneError."""
        if not self.is_good(caller):
            raise KeyGoneError

    def allowance_within(self, request: RunRequest) -> Allowance | None:
        """What a run may have that another run has asked for: what a day allows. It is no request of its own.

        Raises:
            KeyGoneError, RequestError: as `allowance`.
        """
        key = self._by_name.get(request.asked_by)
        if key is None:
            return None
        limits = KeyLimits(tokens_per_day=key.limits.tokens_per_day, cost_per_day=key.limits.cost_per_day)
        return self.allowance(Caller(_replace(key, limits=limits)), request)

    def allowance(self, caller: Caller, request: RunRequest) -> Allowance | None:
        """What a run of theirs may have; None: whatever it likes.

        Raises:
            KeyGoneError: the key is not good any more.
            RequestError: the run's cost is limited, and nobody knows it.
        """
        self.require_good(caller)
        return make_allowance(caller, request, self.prices, self._clock.now())

    def note_refusal(self, address: str) -> None:
        """S14: a wrong key came from there."""
        self.audit.refused(address)
        self.start()

    # Changes

    async def add(self, key: KeyRecord) -> None:
        """Keep a new key.

        Raises:
            RequestError: there is one of that name (409), or nobody could revoke it again.
        """
        if not self.has_admin and key.role != "admin":
            raise RequestError(
                "Set server.api_key first, or make a key with the role admin: as soon as there is a key one is needed, "
                "and nobody could make or revoke others.",
                status=409,
                code="no_admin_key",
            )
        if key.name in self._declared or not await self._store.put_key(key):
            raise RequestError(
                f"There is a key {key.name} already; revoke it first.", status=409, param="name", code="key_exists"
            )
        self._know(await self._store.list_keys())
        self.start()

    async def revoke(self, name: str) -> bool:
        """Forget a key, and cut off whoever has it; False: there was none.

        Raises:
            RequestError: it stands in the settings (409).
        """
        if name in self._declared:
            raise RequestError(
                f"The key {name} stands in the settings; take [keys.{name}] out there.",
                status=409,
                code="key_is_declared",
            )
        deleted = await self._store.delete_key(name)
        self._know(await self._store.list_keys())
        return deleted

    # Cutting off

    def watch(self, caller: Caller, subscription: Subscription) -> None:
        """Cut a reader off when its key is gone."""
        if caller.key is not None:
            self._readers.setdefault(caller.name, WeakSet()).add(subscription)

    def watch_socket(self, caller: Caller, cut: Callable[[], None]) -> Callable[[], None]:
        """Have a connection cut when its key is gone; what it returns ends that."""
        cuts = self._sockets.setdefault(caller.name, set())
        cuts.add(cut)
        return lambda: cuts.discard(cut)

    def _cut(self, name: str) -> None:
        logger.info("the key %s is gone: its streams and runs are ended", name)
        for subscription in tuple(self._readers.pop(name, ())):
            subscription.cut(KeyGoneError())
        for cut in tuple(self._sockets.pop(name, ())):
            cut()
        self._stop_runs(name)

    def _stop_runs(self, gone: str = "") -> None:
        """Runs of keys that are gone, also of one with a successor, and those that another server has left behind."""
        for live in self._registry.all if self._registry is not None else ():
            name = live.request.asked_by
            if name and (name == gone or name not in self._by_name or self._has_expired(self._by_name[name])):
                live.interrupt(Cancelled(reason="user", message=f"The key {name} was revoked or has expired."))

    async def _look_again(self) -> None:
        expired: set[str] = set()
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                if self._store.is_shared:
                    await self._look()
                gone = {name for name, key in self._by_name.items() if self._has_expired(key)}
                for name in gone - expired:
                    self._cut(name)
                expired = gone
                self._stop_runs()
                await self.audit.flush()
            except StoreError as error:
                # What is known still holds; whoever cannot reach the store can start no run either.
                logger.warning("the keys cannot be read now: %s", error.message)
            except Exception:
                logger.exception("the keys could not be looked at")
