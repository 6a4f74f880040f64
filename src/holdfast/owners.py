"""Whose something is (S12): part of the name that it is stored under.

What belongs to a key of the team is stored as the key's name, a sign that no client can send in a name, and the name
that the client knows: two keys that use one name never meet, wherever that name goes. What is the admin's has no such
beginning, so that whatever was stored before there were keys is the admin's. Vocabulary: imports nothing of ours.
"""

from typing import Final, TypeVar

ADMIN: Final = ""
"""The owner of what the admin has made, and of all that is old."""
_SIGN: Final = "\x1f"
"""A control character: headers and bodies that name something with one in it are refused."""

Name = TypeVar("Name", bound=str)


def owned_name(owner: str, name: Name) -> Name:
    """What a name of an owner's is stored as."""
    return name if owner == ADMIN else type(name)(f"{owner}{_SIGN}{name}")


def owner_of(name: str) -> str:
    """Whose a stored name is."""
    owner, sign, _ = name.partition(_SIGN)
    return owner if sign else ADMIN


def bare_name(name: Name) -> Name:
    """A stored name as its owner knows it."""
    _, sign, bare = name.partition(_SIGN)
    return type(name)(bare) if sign else name
