"""The frames of a run's event stream: bytes in, frames out, wherever the bytes are cut.

Like the reader of model streams, but it keeps each frame's id, which is where to read on. No I/O. Above: http.
"""

from typing import Final, NamedTuple

from holdfast.errors import ClientError

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Far above any event; a peer that never ends a frame must not fill our memory."""


class Frame(NamedTuple):
    """One server-sent event."""

    id: str
    """Empty when it has none."""
    event: str
    data: bytes


class FrameReader:
    """One event stream."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()
        self._id = ""
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete; comments are none.

        Raises:
            ClientError: a frame is larger than any event can be.
        """
        self._partial += data
        frames: list[Frame] = []
        if b"\n" in data:
            *lines, rest = self._partial.split(b"\n")
            self._partial = bytearray(rest)
            for line in lines:
                self._take(bytes(line).removesuffix(b"\r"), frames)
        if len(self._partial) + self._data_bytes > self._max_frame_bytes:
            raise ClientError("The server sent an event that is too large to be one.")
        return frames

    def _take(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            if self._data:
                frames.append(Frame(self._id, self._event, b"\n".join(self._data)))
            self._id, self._event, self._data, self._data_bytes = "", "", [], 0
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
                self._data_bytes += len(value)
            case b"id":
                self._id = value.decode("utf-8", "replace")
            case b"event":
                self._event = value.decode("utf-8", "replace")
            case _:
                # A comment, or a field that a newer server has.
                return
