"""Spellings of addresses that are not on the public internet, by the hundred; none of them needs a name server."""

import itertools
from collections.abc import Callable, Iterator

from holdfast.errors import ToolError
from holdfast.ids import RunId, SessionId
from holdfast.tools.port import ToolContext
from holdfast.tools.web.tools import WebTools

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")
PRIVATE = "127.0.0.1 127.8.8.8 0.0.0.0 10.0.0.1 169.254.169.254 172.16.0.1 192.168.0.1 100.64.0.1".split()
FORMS: tuple[Callable[[int], str], ...] = (
    str,
    hex,
    lambda part: f"0{part:o}",
    lambda part: f"000{part:o}",
    lambda part: f"0x{part:08x}",
)
WIDE = str.maketrans("0123456789.", "０１２３４５６７８９。")


def spellings(address: str) -> Iterator[str]:
    """One IPv4 address as browsers, C libraries and others have understood it."""
    parts = [int(part) for part in address.split(".")]
    number = int.from_bytes(bytes(parts), "big")
    for one, two in itertools.product(FORMS, repeat=2):
        yield ".".join([one(parts[0]), one(parts[1]), two(parts[2]), two(parts[3])])
    for form in FORMS:
        yield form(number)
        yield f"{form(parts[0])}.{form(number & 0xFFFFFF)}"
        yield f"{form(parts[0])}.{form(parts[1])}.{form(number & 0xFFFF)}"
    yield from (address.translate(WIDE), f"%31{address[1:]}" if address.startswith("1") else address)
    high, low = number >> 16, number & 0xFFFF
    for prefix in ("::ffff:", "0:0:0:0:0:ffff:", "64:ff9b::", "::"):
        yield f"[{prefix}{address}]"
        yield f"[{prefix}{high:x}:{low:x}]"
    yield f"[2002:{high:x}:{low:x}::]"


def urls(port: int) -> Iterator[str]:
    """Addresses of the web, each once."""
    seen: set[str] = set()
    hosts = [host for address in PRIVATE for host in spellings(address)]
    hosts += [
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[::1%25lo]",
    ]
    hosts += ["localhost", "LOCALHOST"]
    for host, form in itertools.product(hosts, ("http://{}:{}/x", "HTTP://{}:{}/x", " http://{}:{}/x ")):
        if (url := form.format(host, port)) not in seen:
            seen.add(url)
            yield url


async def try_addresses(port: int) -> tuple[int, list[str]]:
    """How many were tried, and those that were fetched."""
    tools = WebTools(seconds=5)
    tried, fetched = 0, []
    for url in urls(port):
        tried += 1
        try:
            await tools.call("fetch_url", {"url": url}, CONTEXT)
        except ToolError:
            continue
        fetched.append(url)
    return tried, fetched
