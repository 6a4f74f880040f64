"""Notices on their way: which server hears on which channel, and how they are written there (R17).

PostgreSQL's NOTIFY takes texts of up to 8,000 bytes, so that many notices go as several. Used by the writer and the
link. Sits on the port of coordination.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.store.coordination import Notice, ReplicaId

EVERYBODY: Final = "holdfast"
"""The channel that all servers listen on."""
NOTICES_AT_ONCE: Final = 50
"""Some 100 bytes each."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Notice]).decode


def channel_of(replica: ReplicaId | None) -> str:
    """Where a server hears what is for it; None: where all do. The schema has the same (`holdfast.channel_of`)."""
    return EVERYBODY if replica is None else f"holdfast_{replica}"


def payloads_of(notices: Sequence[Notice]) -> list[str]:
    """Notices, as they are sent."""
    return [
        _encode(notices[start : start + NOTICES_AT_ONCE]).decode() for start in range(0, len(notices), NOTICES_AT_ONCE)
    ]


def parse_notices(payload: str) -> list[Notice]:
    """The inverse. Raises msgspec.MsgspecError: a newer version's."""
    return _decode(payload)
