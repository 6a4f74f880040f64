"""What a client keeps for us between two requests, as the opaque text of `encrypted_content` (U3).

A client that manages its own history sends items back, and an item has one place for what only the server understands.
The text is packed, not secret: all of it came from this client's own conversation. Sits on the vocabulary.
"""

import base64
import binascii
from typing import Final

import msgspec

from holdfast.messages import Metadata, Reasoning

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""In `include`: the client wants it."""
_MARK: Final = "hf1."
"""Tells our own packing from a provider's, which is passed on as it is."""


class SealedReasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="reasoning"):
    """What a reasoning item cannot say: are its words the thoughts or a summary of them, and what signs them."""

    summary: bool = False
    metadata: Metadata | None = None


class SealedCall(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """What a provider wants back with a tool call."""

    metadata: Metadata


class SealedSummary(msgspec.Struct, frozen=True, kw_only=True, tag="compaction"):
    """The summary that stands for a compacted conversation."""

    text: str


Sealed = SealedReasoning | SealedCall | SealedSummary

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Sealed] = msgspec.json.Decoder(Sealed)


def seal(value: Sealed) -> str:
    """Pack a value."""
    return _MARK + base64.urlsafe_b64encode(_encode(value)).decode("ascii")


def unseal(text: str) -> Sealed | None:
    """The value in a text, or None when we did not pack it."""
    if not text.startswith(_MARK):
        return None
    try:
        return _decoder.decode(base64.b64decode(text.removeprefix(_MARK), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        return None


def seal_reasoning(summary: bool, metadata: Metadata | None) -> str | None:
    """The `encrypted_content` of a reasoning item; None: there is nothing that the item itself does not say."""
    if summary and not metadata:
        return None
    return seal(SealedReasoning(summary=summary, metadata=metadata))


def seal_call(metadata: Metadata | None) -> str | None:
    """The `encrypted_content` of a call; None: its provider wants nothing back."""
    return seal(SealedCall(metadata=metadata)) if metadata else None


def open_call(content: str | None) -> Metadata | None:
    """A call's metadata, from an item that came back."""
    sealed = unseal(content) if content else None
    return sealed.metadata if isinstance(sealed, SealedCall) else None


def open_reasoning(words: str, summary: bool, content: str | None) -> Reasoning | None:
    """A reasoning item that came back; None: it says nothing.

    Args:
        words: the item's text.
        summary: does the item call it a summary?
        content: its `encrypted_content`, ours or a provider's.
    """
    metadata: Metadata | None = None
    if content:
        match unseal(content):
            case SealedReasoning() as sealed:
                summary, metadata = sealed.summary, sealed.metadata
            case _:
                metadata = {"responses": {"encrypted_content": content}}
    if not words and not metadata:
        return None
    return Reasoning(text=words, summary=summary, metadata=metadata)
