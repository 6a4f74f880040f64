"""Who did what (S14): entries for the audit log, and wrong keys, of which no flood becomes a flood of entries.

What is done with a request is written before it is answered; a run's start is part of the change that creates it. Wrong
keys are gathered, by address, and written once a look of the keyring. No contents and no secrets. Sits on the store's
port.
"""

import hashlib
import logging
from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.errors import StoreError
from holdfast.settings.types import Key, dotted, is_secret
from holdfast.store.accounts import AuditEntry
from holdfast.store.port import Store

logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 60.0
"""Of one address's wrong keys so many seconds make one entry, and one more that says how many were left out."""
MAX_ADDRESSES: Final = 1_000
HASH_DIGITS: Final = 16
OTHERS: Final = "others"
"""Addresses beyond those that are told apart."""


def fingerprint_settings(settings: Settings) -> dict[str, str]:
    """The settings that are not as by default, by name: a hash of each, and of a secret only that it is set."""
    found: dict[str, str] = {}
    standard = _flatten(msgspec.to_builtins(Settings()), ())
    for key, value in _flatten(msgspec.to_builtins(settings), ()).items():
        if standard.get(key) != value:
            digest = hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:HASH_DIGITS]
            found[dotted(key)] = "set" if is_secret(key) or key[-1] == "hash" else digest
    return found


def _flatten(value: Any, key: Key) -> dict[Key, Any]:
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {inner: each for name, part in value.items() for inner, each in _flatten(part, (*key, name)).items()}


class Audit:
    """Writes the audit log."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: list[AuditEntry] = []
        self._since: dict[str, float] = {}
        """When the first wrong key of an address came, of those that are being gathered."""
        self._left_out: dict[str, int] = {}

    async def note(self, who: str, action: str, what: str = "", **details: Any) -> None:
        """Somebody did something. Where that cannot be written the log says so: what was done is done."""
        entry = AuditEntry(at=self._clock.now(), who=who, action=action, what=what, details=details)
        try:
            await self._store.add_audit([entry])
        except StoreError as error:
            logger.error("not in the audit log: %s %s by %s: %s", action, what, who or "the admin", error.message)

    def refused(self, address: str) -> None:
        """A wrong key came."""
        if address not in self._since and len(self._since) >= MAX_ADDRESSES:
            address = OTHERS
        if address in self._since:
            self._left_out[address] = self._left_out.get(address, 0) + 1
            return
        now = self._since[address] = self._clock.now()
        self._waiting.append(AuditEntry(at=now, who="", action="key.refused", details={"address": address}))

    async def flush(self, *, at_end: bool = False) -> None:
        """Write what was gathered, at the end all of it. Raises StoreUnavailableError, and keeps it."""
        now = self._clock.now()
        for address, since in list(self._since.items()):
            if at_end or now - since >= REFUSED_SECONDS:
                del self._since[address]
                if left_out := self._left_out.pop(address, 0):
                    details = {"address": address, "left_out": left_out}
                    self._waiting.append(AuditEntry(at=now, who="", action="key.refused", details=details))
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await self._store.add_audit(waiting)
            except BaseException:
                # Before what has come meanwhile.
                self._waiting[:0] = waiting
                raise
