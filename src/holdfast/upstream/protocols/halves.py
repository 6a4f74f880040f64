"""Characters that a provider has cut in two: a surrogate pair whose halves come in different deltas (U1).

JSON escapes a character beyond the 16-bit ones as two halves, and some providers cut between them. No string can hold
half a character, so that a frame which has one is read with a stand-in for each half; here the stand-ins of a channel
(the text, the reasoning, each call's arguments) find each other, and one that stays alone becomes U+FFFD. Nothing of it
concerns a stream without such a frame. `stream_decoder` sits above. No I/O.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict, replace

from holdfast.events import Answered, ArgumentsAdded, Delta, ReasoningAdded, TextAdded

_ESCAPES: Final = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u([dD][89a-fA-F][0-9a-fA-F]{2})"
)
_SHIFT: Final = 0x10F800 - 0xD800
"""The stand-ins are the last characters of the last private plane, which nobody is known to use."""
_PAIR: Final = re.compile("([\U0010f800-\U0010fbff])([\U0010fc00-\U0010ffff])")
_FIRST: Final = re.compile("[\U0010f800-\U0010fbff]\\Z")
_ALONE: Final = re.compile("[\U0010f800-\U0010ffff]")

_Words = TextAdded | ReasoningAdded | ArgumentsAdded
_Channel = int | type[TextAdded] | type[ReasoningAdded]
"""What halves can meet in: a call by its number, or the words of a kind."""


def mend_unicode(data: bytes, *, keep_halves: bool = False) -> bytes:
    """JSON with whatever is no character in it, raw or escaped, replaced by U+FFFD; halves, if wanted, by stand-ins."""

    def mend(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return chr(int(match[1], 16) + _SHIFT) if keep_halves else "\ufffd"

    return _ESCAPES.sub(mend, data.decode("utf-8", "replace")).encode()


def settle(text: str) -> str:
    """A text in which no half can find its other any more."""
    return _ALONE.sub("\ufffd", _PAIR.sub(_character, text))


def _character(pair: re.Match[str]) -> str:
    first, second = (ord(half) - _SHIFT for half in pair.groups())
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00))


class HalvedCharacters:
    """The halves of one stream that wait for their other."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[_Channel, _Words] = {}
        """A delta of the half alone."""

    def join(self, deltas: Sequence[Delta]) -> list[Delta]:
        """The deltas with whole characters. A half at the end of one is kept back for the next of its channel."""
        joined: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, _Words):
                self._join_words(delta, joined)
            else:
                # Whatever is no words ends those before it; only arguments may go on until the turn ends.
                self._give_up(joined, arguments=isinstance(delta, Answered))
                joined.append(_settled(delta))
        return joined

    def _join_words(self, delta: _Words, joined: list[Delta]) -> None:
        channel: _Channel = delta.index if isinstance(delta, ArgumentsAdded) else type(delta)
        waiting = self._waiting.pop(channel, None)
        if not isinstance(delta, ArgumentsAdded):
            self._give_up(joined, arguments=False)
        text = delta.text if waiting is None else waiting.text + delta.text
        if (half := _FIRST.search(text)) is not None:
            self._waiting[channel] = replace(delta, text=half[0])
            text = text[:-1]
        if text:
            joined.append(replace(delta, text=settle(text)))

    def _give_up(self, joined: list[Delta], *, arguments: bool) -> None:
        """The parts of these halves are over."""
        for channel in [channel for channel in self._waiting if arguments or not isinstance(channel, int)]:
            joined.append(replace(self._waiting.pop(channel), text="\ufffd"))


def _settled(delta: Delta) -> Delta:
    return replace(delta, **{name: _settled_value(value) for name, value in asdict(delta).items()})


def _settled_value(value: Any) -> Any:
    match value:
        case str():
            return settle(value)
        case dict():
            return {_settled_value(key): _settled_value(inner) for key, inner in value.items()}
        case list():
            return [_settled_value(inner) for inner in value]
        case _:
            return value
