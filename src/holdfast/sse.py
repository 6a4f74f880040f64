"""Server-sent events: bytes in, frames out, wherever the bytes are cut.

Follows the WHATWG grammar: any of the three line ends, comments, data over several lines, a byte-order mark. Memory is
bounded by the largest frame allowed. No I/O and no JSON; the codecs' decoders sit above.
"""

from typing import Final

Frame = tuple[str, bytes]
"""Event name (empty when the frame has none) and data. A plain tuple because one is made for every token."""

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Far above any real frame; a peer that never ends one must not fill our memory."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseDecoder:
    """One event stream."""

    __slots__ = (
        "_at_start",
        "_data",
        "_event",
        "_max_frame_bytes",
        "_more",
        "_more_bytes",
        "_partial",
        "_saw_return",
        "overflowed",
    )

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()
        """The line whose end has not come."""
        self._event = ""
        self._data: bytes | None = None
        """The data of the frame whose end has not come; the first line of it."""
        self._more: list[bytes] = []
        """Its other lines, which hardly any frame has."""
        self._more_bytes = 0
        self._saw_return = False
        self._at_start = True
        self.overflowed = False
        """A frame was larger than allowed: the stream cannot be read any further."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete. Comments, and frames without data, are no frames."""
        frames: list[Frame] = []
        if self.overflowed or not data:
            return frames
        if self._saw_return:
            # The line end was taken for "\r"; its other half must not end a second line.
            self._saw_return = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            self._saw_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        lines = data.split(b"\n")
        rest = lines.pop()
        if self._partial and lines:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial.clear()
        if rest:
            self._partial += rest
        if self._at_start and lines:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False

        if len(data) + len(self._partial) > self._max_frame_bytes or (lines and len(lines[0]) > self._max_frame_bytes):
            lines = self._cut_overflow(lines)

        pending = self._data
        for line in lines:
            if not line:
                if pending is not None:
                    frames.append((self._event, pending if not self._more else self._join(pending)))
                    pending = None
                self._event = ""
            elif line[:6] == b"data: " and pending is None:
                pending = line[6:]
            else:
                pending = self._take_line(line, pending)
                if self._more_bytes > self._max_frame_bytes:
                    self.overflowed = True
                    break
        self._data = pending
        return frames

    def end(self) -> list[Frame]:
        """The body has ended: a last frame whose blank line is missing. Its data may be cut short."""
        if self._partial.startswith(b"{") and self._data is None and not self.overflowed:
            # No event stream but a bare JSON object: most likely it says what is wrong.
            return [("", bytes(self._partial))]
        return self.feed(b"\n\n")

    def _take_line(self, line: bytes, pending: bytes | None) -> bytes | None:
        """Any line but the usual one. What is neither data nor an event's name is passed over, comments too."""
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._event = value.decode("utf-8", "replace")
        elif field == b"data":
            if pending is None:
                return value
            self._more.append(value)
            self._more_bytes += len(value) + 1
        return pending

    def _join(self, first: bytes) -> bytes:
        data = b"\n".join((first, *self._more))
        self._more.clear()
        self._more_bytes = 0
        return data

    def _cut_overflow(self, lines: list[bytes]) -> list[bytes]:
        """The lines before the first that is too long; nothing behind it can be trusted."""
        limit = self._max_frame_bytes
        fits = next((number for number, line in enumerate(lines) if len(line) > limit), len(lines))
        self.overflowed = fits < len(lines) or len(self._partial) > limit
        if self.overflowed:
            self._partial.clear()
        return lines[:fits]
