"""Who asks: a key of the team, or the admin (S12). Values alone; sits on the store's records of keys."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from holdfast.owners import ADMIN
from holdfast.store.accounts import KeyRecord

ADMIN_NAME: Final = "admin"
"""What the admin is called where an empty name says nothing; no key can have it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever is behind a request."""

    key: KeyRecord | None = None
    """None: whoever has `server.api_key`, or anybody where no key is needed."""

    @property
    def name(self) -> str:
        """The key's; empty: the admin's."""
        return "" if self.key is None else self.key.name

    @property
    def is_admin(self) -> bool:
        """Do they see and do everything?"""
        return self.key is None or self.key.role == "admin"

    @property
    def is_viewer(self) -> bool:
        """Do they only look?"""
        return self.key is not None and self.key.role == "viewer"

    @property
    def owner(self) -> str:
        """Whose things are theirs: an admin's are every admin's."""
        return ADMIN if self.is_admin else self.name

    def may_use(self, names: Iterable[str]) -> bool:
        """May they use the model that goes by these names?"""
        models = None if self.key is None else self.key.models
        return models is None or any(fnmatchcase(name, pattern) for name in names for pattern in models)


THE_ADMIN: Final = Caller()


def shown_name(name: str) -> str:
    """The name of a key as people are told it."""
    return name or ADMIN_NAME
