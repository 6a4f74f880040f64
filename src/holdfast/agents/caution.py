"""What needs somebody's word although the policy would let it pass: secrets, and strangers once a file was read (S17).

Decided from the conversation that the model is shown and from nothing else, so that a run which goes on after its
server was gone is as cautious as before. Above: the loop. Sits on the vocabulary and the port to tools.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.agents.request import RunRequest
from holdfast.config import AgentSettings, ApprovalMode
from holdfast.messages import Message, ToolMessage, UserMessage
from holdfast.tools.port import CautiousTools, Heard, Tools

FETCH: Final = "fetch_url"
_READ: Final = ("read_file", "search_files")
_MAY_READ: Final = ("terminal", "mcp__*")
"""What they did nobody knows, whether they failed or not."""
_STRICTER: Final[dict[ApprovalMode, int]] = {"auto": 0, "ask": 1, "deny": 2}
_PLAIN_URL: Final = re.compile(r"https?://([a-z0-9.-]+)(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?", re.IGNORECASE)
"""An address that nobody could read in two ways: no user, no backslash, nothing but ASCII. The rest is a stranger's."""
_HOST: Final = re.compile(
    r"(https?://)?(?<![\w.@-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z0-9-]+|localhost)(?![\w@-])", re.IGNORECASE
)
_ENDINGS_OF_FILES: Final = frozenset("am cc cs la md mk ml mov pl pm ps py rs sh so st vi zip".split())
"""Of countries and others too: who speaks of README.md does not mean a host, unless it is written as an address."""


MAX_NAMED: Final = 1_000
"""Hosts that one conversation can name, and those of the newest messages come first: whoever pastes a list of all hosts
there are has named none."""
PIECE_CHARACTERS: Final = 20_000
"""Of a text so many are looked through at a time: nobody's tokens wait for longer than that."""
_WILD: Final = frozenset("*?[")
_SPACE: Final = re.compile(r"\s")


async def find_reason(
    name: str,
    arguments: dict[str, Any],
    *,
    tools: Tools,
    settings: AgentSettings,
    request: RunRequest,
    messages: Sequence[Message],
) -> str:
    """Why a call needs somebody's word; empty: it does not."""
    if name == FETCH and (heard := await hear(settings, request, tools, messages)).has_read:
        host = host_of(arguments.get("url"))
        if not is_named(host, heard.hosts):
            where = host or "an address that cannot be read for certain"
            return (
                f"Files were read in this conversation, and neither the user nor the settings have named {where}: what "
                "was read could be sent there."
            )
    return await tools.caution(name, arguments) if isinstance(tools, CautiousTools) else ""


def stricter(one: ApprovalMode, other: ApprovalMode) -> ApprovalMode:
    """Of two policies the one that lets less pass."""
    return max(one, other, key=_STRICTER.__getitem__)


async def hear(settings: AgentSettings, request: RunRequest, tools: Tools, messages: Sequence[Message]) -> Heard:
    """What the model may have seen, and whom it may talk to; an agent that another asks knows what that one knows."""
    by = request.heard
    return Heard(
        has_read=(by is not None and by.has_read) or has_read(messages, tools),
        hosts=await named_hosts(settings, request, messages),
    )


def has_read(messages: Iterable[Message], tools: Tools) -> bool:
    """Has the model seen what is in a file?"""
    others = {spec.name for spec in tools.specs() if spec.reads}
    return any(
        (message.name in _READ and not message.failed)
        or message.name in others
        or any(fnmatchcase(message.name, pattern) for pattern in _MAY_READ)
        for message in messages
        if isinstance(message, ToolMessage) and message.by_server
    )


def host_of(url: object) -> str:
    """The host of an address; empty: it is not written so that there is no doubt."""
    found = _PLAIN_URL.fullmatch(url.strip()) if isinstance(url, str) else None
    return found[1].rstrip(".").lower() if found else ""


async def named_hosts(settings: AgentSettings, request: RunRequest, messages: Sequence[Message]) -> frozenset[str]:
    """The hosts, or patterns of them, that the user or the settings have named."""
    # What another agent asks stands where a user's message would, and has a model's words in it.
    said = [message.text for message in reversed(messages) if isinstance(message, UserMessage)]
    texts = [settings.prompt, request.instructions, *(said if request.heard is None else ())]
    meant: set[str] = set()
    for piece in (piece for text in texts for piece in _pieces(text)):
        if len(meant) >= MAX_NAMED:
            break
        if len(piece) >= PIECE_CHARACTERS:
            await asyncio.sleep(0)
        found = ((scheme, host.lower()) for scheme, host in _HOST.findall(piece))
        meant.update(host for scheme, host in found if scheme or host.rpartition(".")[2] not in _ENDINGS_OF_FILES)
    known = request.heard.hosts if request.heard is not None else ()
    of_settings = (host.lower() for host in (*settings.known_hosts, *settings.allow_private_hosts))
    return frozenset([*of_settings, *known, *list(meant)[:MAX_NAMED]])


def _pieces(text: str) -> Iterator[str]:
    """A text, cut where there is space; a word that is longer than any host is left out."""
    start = 0
    while len(text) - start > 2 * PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        space = _SPACE.search(text, end, end + PIECE_CHARACTERS)
        if space is not None:
            yield text[start : space.start()]
            start = space.end()
        else:
            start = end + PIECE_CHARACTERS
            # What follows may be the rest of that word.
            rest = _SPACE.search(text, start)
            start = len(text) if rest is None else rest.end()
    yield text[start:]


def is_named(host: str, named: frozenset[str]) -> bool:
    """Is a host one of those, or does it match one of the patterns (`*.example.org`)?"""
    is_there = host in named or any(fnmatchcase(host, pattern) for pattern in named if _WILD & set(pattern))
    return bool(host) and is_there
