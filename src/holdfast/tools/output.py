"""Text that fits: how a tool's output is kept within bounds, and how that is said.

The head and the tail are kept, because commands say what they do first and how it went last. Below the tool sets;
knows no tool.
"""

from typing import Final

_NOTICE_BYTES: Final = 64
"""Room for the line that says how much was left out."""


class Excerpt:
    """The first and the last part of a stream of bytes, in bounded memory."""

    def __init__(self, max_bytes: int) -> None:
        self._head_room = max_bytes // 2
        self._tail_room = max_bytes - self._head_room
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        self.total_bytes += len(data)
        taken = self._head_room - len(self._head)
        if taken > 0:
            self._head += data[:taken]
            data = data[taken:]
        self._tail += data[-self._tail_room :] if self._tail_room else b""
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def text(self) -> str:
        """What was kept, at most `max_bytes` long, and where something is missing how much."""
        if self.total_bytes <= self._head_room + self._tail_room:
            return (self._head + self._tail).decode("utf-8", "replace")
        head = _without_split_end(bytes(self._head))
        tail_bytes = max(self._tail_room - _NOTICE_BYTES, 0)
        tail = _without_split_start(bytes(self._tail[-tail_bytes:])) if tail_bytes else b""
        left_out = self.total_bytes - len(head) - len(tail)
        return (
            f"{head.decode('utf-8', 'replace')}\n[… {left_out:,} bytes left out …]\n{tail.decode('utf-8', 'replace')}"
        )


def cut(text: str, max_bytes: int) -> str:
    """The text if it fits, else its head and tail and how much is missing between them.

    Lone surrogates, which no JSON encoder takes, are replaced.
    """
    excerpt = Excerpt(max_bytes)
    excerpt.add(text.encode("utf-8", "replace"))
    return excerpt.text()


def cut_line(text: str, max_characters: int) -> str:
    """One short line: white space folded, the rest cut off with an ellipsis."""
    line = " ".join(text[: max_characters * 4].split())
    return line if len(line) <= max_characters else line[: max_characters - 1].rstrip() + "…"


def _without_split_end(data: bytes) -> bytes:
    """Drop a character that was cut in two at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            return data[:-back]
        if byte < 0x80:
            break
    return data


def _without_split_start(data: bytes) -> bytes:
    """Drop a character that was cut in two at the start."""
    for skip in range(min(4, len(data))):
        if data[skip] & 0xC0 != 0x80:
            return data[skip:]
    return data
