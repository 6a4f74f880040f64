"""One HTTP/1.1 response: bytes in; status, headers and pieces of its body out. No I/O.

The only module that knows httptools, and where it is decided whether a body is whole (U14, U16). `response` sits above:
it waits, delivers, and decides what becomes of the connection.
"""

import zlib
from collections.abc import Callable
from typing import Final

import httptools

from holdfast.upstream.transport.port import NoResponseError, NotHttpError, ResponseCutError

MAX_HEAD_BYTES: Final = 64 * 1024
NOT_HTTP: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)
"""All that `feed` can raise."""

_ZIPPED: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class ResponseParser:
    """One response, as far as it has come."""

    __slots__ = (
        "_ends_with_connection",
        "_head_bytes",
        "_parser",
        "_unzip",
        "failure",
        "feed",
        "has_begun",
        "headers",
        "is_over",
        "is_unwanted",
        "keep_alive",
        "pieces",
        "status",
        "unread_bytes",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """By their names in lower case."""
        self.has_begun = False
        """Status and headers have come."""
        self.is_over = False
        """The body has ended as it should."""
        self.failure: Exception | None = None
        """Why nothing more can be read. Whoever reads may set it too; from then on the body is passed over."""
        self.is_unwanted = False
        """Nobody reads the rest of the body: it is passed over, and only its end is looked for."""
        self.pieces: list[bytes] = []
        """What has come of the body, until somebody takes it."""
        self.unread_bytes = 0
        self.keep_alive = False
        """The connection may carry another request once this is over."""
        self._ends_with_connection = False
        """Only the end of the connection ends the body."""
        self._head_bytes = 0
        self._unzip: zlib._Decompress | None = None
        self._parser = httptools.HttpResponseParser(self)
        # As browsers and other clients do: a server that is not strict about what it writes can still be understood.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.feed: Callable[[bytes], None] = self._parser.feed_data
        """Take what a read brought. The parser's own method, and no step of ours around it: every token passes here.
        Raises one of NOT_HTTP."""

    def take(self) -> bytes:
        """The body since it was last taken. There must be some."""
        pieces, self.pieces, self.unread_bytes = self.pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check_head(self, size: int) -> None:
        """A read of this size has brought no end of the headers: that may not go on for ever."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self.failure = NotHttpError("its headers do not end")

    def end(self, *, cleanly: bool) -> None:
        """The connection has ended: the one place where that is, or is not, the end of the body too."""
        if self.is_over or self.failure is not None:
            return
        if not self.has_begun:
            self.failure = NoResponseError()
        elif self._ends_with_connection and cleanly:
            self.is_over = True
        else:
            self.failure = ResponseCutError()

    # Below: called by httptools. What they raise comes out of `feed` as one of NOT_HTTP.

    def on_message_begin(self) -> None:
        """A response; more than one was not asked for."""
        if self.is_over:
            raise NotHttpError("it answers twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Status and headers are whole."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return  # "Continue" and the like: the response follows.
        self.has_begun = True
        chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._ends_with_connection = "content-length" not in self.headers and not chunked
        self.keep_alive = not self._ends_with_connection and self._parser.should_keep_alive()
        # Asked for as it is, a body may still come compressed: some gateways do not look at what was asked for.
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in _ZIPPED:
            self._unzip = zlib.decompressobj(_ZIPPED[encoding])
        elif encoding not in ("", "identity"):
            self.failure = NotHttpError(f"its body is compressed as {encoding[:20]!r}, which was not asked for")

    def on_body(self, data: bytes) -> None:
        """A piece of the body: a read may bring several, and a chunk may come in several reads."""
        if self.is_unwanted or self.failure is not None:
            return
        if self._unzip is not None:
            try:
                data = self._unzip.decompress(data)
            except zlib.error as error:
                self.failure = NotHttpError(str(error))
                return
        if data:
            self.pieces.append(data)
            self.unread_bytes += len(data)

    def on_message_complete(self) -> None:
        """The body has ended; or a "Continue" has, whose headers are not the response's."""
        if self.has_begun:
            self.is_over = True
        else:
            self.headers = {}
