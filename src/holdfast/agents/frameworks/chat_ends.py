"""How a chat completions stream ended, which the OpenAI Agents SDK reads and does not pass on (A5, U16).

It tells an answer that was cut at its output limit, by a filter, or by the end of the body, as it tells a whole one. So
the chunks are looked at on their way into the SDK's own handler, for runs of ours alone. That handler is no API of the
SDK's: where it is not there nothing is looked at, and the log says so. Above: `openai_agents`.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

try:
    from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
except ImportError:
    ChatCmplStreamHandler = None

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ChatEnd:
    """How the turn that is going on has ended."""

    is_chat: bool = False
    """Its model speaks chat completions."""
    finish: str | None = None
    """The reason, once there is one."""

    def reset(self) -> None:
        """Another turn begins."""
        self.is_chat, self.finish = False, None


_END: ContextVar[ChatEnd | None] = ContextVar("holdfast_chat_end", default=None)


@contextmanager
def watch(end: ChatEnd) -> Iterator[None]:
    """What begins in this block says here how its chat streams end."""
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


async def _watched(stream: Any, end: ChatEnd) -> AsyncIterator[Any]:
    end.is_chat, end.finish = True, None
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                end.finish = choice.finish_reason
        yield chunk


def _install() -> None:
    handler = ChatCmplStreamHandler
    inner = getattr(handler, "handle_stream", None)
    if inner is None:
        logger.warning(
            "This version of the OpenAI Agents SDK does not show why a chat answer ended: a cut one looks whole"
        )
        return

    def handle_stream(response: Any, stream: Any, *more: Any, **options: Any) -> Any:
        end = _END.get()
        return inner(response, stream if end is None else _watched(stream, end), *more, **options)

    handler.handle_stream = staticmethod(handle_stream)


_install()
