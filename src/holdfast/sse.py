"""Server-sent events: bytes in, frames out, wherever the bytes are cut.

Follows the WHATWG grammar: any of the three line ends, comments, data over several lines, a byte-order mark. An id
belongs to its own frame here: whoever resumes a stream keeps the last one. Memory is bounded by the largest frame
allowed. No I/O and no JSON. Above: the codecs' decoders and the client. Vocabulary: imports nothing of ours.
"""

from typing import Final

SseFrame = tuple[str, bytes, str]
"""Event name, data and id; empty what the frame does not have. A plain tuple because one is made for every token."""

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Far above any real frame; a peer that never ends one must not fill our memory."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class SseDecoder:
    """One event stream."""

    __slots__ = (
        "_at_start",
        "_data",
        "_document",
        "_event",
        "_id",
        "_max_frame_bytes",
        "_more",
        "_more_bytes",
        "_partial",
        "_saw_return",
        "is_json",
        "overflowed",
    )

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()
        """The line whose end has not come."""
        self._event = ""
        self._id = ""
        self._data: bytes | None = None
        """The data of the frame whose end has not come; the first line of it."""
        self._more: list[bytes] = []
        """Its other lines, which hardly any frame has."""
        self._more_bytes = 0
        self._saw_return = False
        self._at_start = True
        self._document: bytearray | None = None
        """The body so far, if it began as JSON does and has had no frame."""
        self.is_json = False
        """It was no event stream but a JSON document, which `end` has given: most likely it says what is wrong."""
        self.overflowed = False
        """A frame was larger than allowed: the stream cannot be read any further."""

    def feed(self, data: bytes) -> list[SseFrame]:
        """The frames that these bytes complete. Comments, and frames without data, are no frames."""
        frames: list[SseFrame] = []
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
        partial = self._partial
        may_overflow = len(partial) + len(data) > self._max_frame_bytes
        if partial and lines:
            lines[0] = bytes(partial) + lines[0]
            partial.clear()
        if rest:
            partial += rest
        if self._at_start and lines:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
            if _opens_json(lines[0]):
                self._document = bytearray(b"\n".join((*lines, rest)))
        elif self._document is not None:
            self._document += data
        if may_overflow:
            lines = self._cut_overflow(lines)

        event, frame_id, pending, more = self._event, self._id, self._data, self._more
        for line in lines:
            if not line:
                if pending is not None:
                    frames.append((event, pending if not more else self._join(pending), frame_id))
                    pending = None
                event = frame_id = ""
            elif pending is None and len(value := line.removeprefix(b"data: ")) < len(line):
                pending = value
            else:
                # Any line but the usual one. What is no field that we know is passed over, comments too.
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"event":
                    event = value.decode("utf-8", "replace")
                elif field == b"id":
                    frame_id = value.decode("utf-8", "replace")
                elif field == b"data":
                    if pending is None:
                        pending = value
                    elif not self._take_more(value):
                        break
        self._event, self._id, self._data = event, frame_id, pending
        if self._document is not None:
            self._look_at_document(is_stream=bool(frames) or pending is not None)
        return frames

    def end(self) -> list[SseFrame]:
        """The body has ended: a last frame whose blank line is missing. Its data may be cut short."""
        document = self._partial if self._at_start and _opens_json(self._partial) else self._document
        document = document and document.copy()
        frames = self.feed(b"\n\n")
        if document and not frames and not self.overflowed:
            self.is_json = True
            frames.append(("", bytes(document), ""))
        return frames

    def _look_at_document(self, *, is_stream: bool) -> None:
        if is_stream:
            self._document = None
        elif self._document is not None:
            self.overflowed = self.overflowed or len(self._document) > self._max_frame_bytes

    def _take_more(self, line: bytes) -> bool:
        """Another line of data for the frame that is coming; False: it is too large now."""
        self._more.append(line)
        self._more_bytes += len(line) + 1
        self.overflowed = self._more_bytes > self._max_frame_bytes
        return not self.overflowed

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


def _opens_json(line: bytes | bytearray) -> bool:
    """Does a first line begin as no line of an event stream does?"""
    return line.lstrip()[:1] in (b"{", b"[")
