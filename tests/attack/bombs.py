"""Pages that are small on the wire and large inside, or that are written so that reading them takes for ever."""

import gzip
import zlib
from collections.abc import Mapping

from aiohttp import web

LARGE = 300_000_000
CHARSETS = (
    *(
        "punycode",
        "idna",
        "unicode_escape",
        "raw_unicode_escape",
        "utf-7",
        "rot13",
        "base64",
        "bz2",
        "zip",
        "hex",
        "quopri",
    ),
    *("uu", "undefined", "utf-16", "utf-32", "hz", "iso2022_jp_ext", "gb18030", "cp037", "mbcs", "x" * 200, "\x00", ""),
)


def zipped() -> bytes:
    """300 MB of nothing."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(bytes(1_000_000)) for _ in range(LARGE // 1_000_000)]
    return b"".join([*pieces, packer.flush()])


def pages() -> Mapping[str, web.Response]:
    """By name."""
    once = zipped()
    found = {
        "a gzip bomb": _page(once, "text/plain", "gzip"),
        "a gzip bomb in another": _page(gzip.compress(once), "text/plain", "gzip, gzip"),
        "a deflate bomb": _page(zlib.compress(bytes(50_000_000)), "text/html", "deflate"),
        "no gzip at all": _page(b"not gzip", "text/plain", "gzip"),
        "an unknown encoding": _page(b"\x00" * 1000, "text/plain", "zstd, nothing"),
        "brackets": _page(b"<" * 1_900_000, "text/html"),
        "open tags": _page(b"<div>" * 350_000, "text/html"),
        "open comments": _page(b"<!--" * 450_000, "text/html"),
        "entities": _page(b"&amp;#" * 300_000, "text/html"),
        "json, deep": _page(b"[" * 1_900_000, "application/json"),
    }
    body = (b"xn--" + b"a-9" * 600_000)[:1_900_000]
    for charset in CHARSETS:
        found[f"in {charset[:20]!r}"] = _page(body, f"text/html; charset={charset}".replace("\x00", "%00"))
    return found


def _page(body: bytes, kind: str, encoding: str = "") -> web.Response:
    headers = {"Content-Type": kind, **({"Content-Encoding": encoding} if encoding else {})}
    return web.Response(body=body, headers=headers)
