"""A page's bytes as text, in the encodings that pages are written in.

Python knows many more (`punycode`, `idna`, `unicode_escape`), some of which take minutes for what a page may bring; a
page that names one of those is read as UTF-8. What has mistakes in it is slow in any encoding, so it is decoded in
pieces: between two of them others get their turn. Blocks: call it in a thread. Below fetching.
"""

import codecs
import re
import threading
from typing import Final

_MARKS: Final = (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE)
PIECE_BYTES: Final = 16_384
"""Of nothing but mistakes this takes some 10 ms, during which Python runs nothing else."""
_META_CHARSET: Final = rb"""(?i)<meta[^>]{0,200}charset=["']?([\w-]{1,40})"""
_CHARSETS: Final = frozenset(
    {
        *"ascii utf-8 utf-8-sig utf-16 utf-16-le utf-16-be utf-32 utf-32-le utf-32-be".split(),
        *(f"iso8859-{number}" for number in range(1, 17)),
        *(f"cp125{number}" for number in range(9)),
        *"cp866 cp874 koi8-r koi8-u koi8-t tis-620 mac-roman mac-cyrillic".split(),
        *"big5 big5hkscs cp950 gb2312 gbk gb18030 hz".split(),
        *"euc_jp shift_jis cp932 iso2022_jp euc_kr cp949 iso2022_kr johab".split(),
    }
)
"""By Python's own names for them; labels of the web lead there."""


def decode_page(body: bytes, declared: str | None, stop: threading.Event) -> str:
    """The text of a page; what cannot be read is replaced.

    Args:
        body: all that came.
        declared: the encoding that its header names, if any; else the page itself may name one.
        stop: set when nobody waits for it any more.
    """
    found = re.search(_META_CHARSET, body[:2048]) if declared is None else None
    name = _charset(declared or (found[1].decode("ascii", "replace") if found else ""))
    if name in ("utf-16", "utf-32") and not body.startswith(_MARKS):
        name += "-le"  # as browsers take it where nothing says which; Python would refuse
    decoder = codecs.getincrementaldecoder(name)("replace")
    pieces: list[str] = []
    for start in range(0, len(body), PIECE_BYTES):
        if stop.is_set():
            break
        pieces.append(decoder.decode(body[start : start + PIECE_BYTES]))
    return "".join([*pieces, decoder.decode(b"", final=True)])


def _charset(label: str) -> str:
    try:
        name = codecs.lookup(label).name if label else ""
    except (LookupError, ValueError):  # there is no such encoding, or it cannot be a name
        name = ""
    return name if name in _CHARSETS else "utf-8-sig"
