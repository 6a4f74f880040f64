"""One HTTP/1.1 response, without a connection: where the bytes are cut makes no difference, and half a body is none."""

import gzip

import pytest

from holdfast.upstream.transport.parser import NOT_HTTP, ResponseParser
from holdfast.upstream.transport.port import NoResponseError, NotHttpError, ResponseCutError

OK = b"HTTP/1.1 200 OK\r\n"
SQUEEZED = gzip.compress(b"one two three")
WHOLE = {
    "a length": OK + b"Content-Length: 13\r\nX-A: b\r\n\r\none two three",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\none \r\n9;x=y\r\ntwo three\r\n0\r\nX-Trailer: z\r\n\r\n",
    "continue first": b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\n" + OK + b"Content-Length: 13\r\n\r\none two three",
    "compressed": OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(SQUEEZED), SQUEEZED),
    "to be closed": OK + b"Connection: close\r\nContent-Length: 13\r\n\r\none two three",
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\none two three",
}
KEPT = {"a length", "chunks", "continue first", "compressed"}
"""Those whose connection may carry another request."""


def parse(*pieces: bytes) -> ResponseParser:
    parser = ResponseParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


@pytest.mark.parametrize("name", WHOLE)
def test_a_response_cut_anywhere_is_the_same(name: str) -> None:
    """The network cuts where it likes."""
    data = WHOLE[name]
    whole = parse(data)
    assert (whole.status, whole.has_begun, whole.is_over, whole.failure) == (200, True, True, None)
    assert whole.keep_alive is (name in KEPT)
    body = b"".join(whole.pieces)
    assert (body, whole.unread_bytes) == (b"one two three", 13)
    for cut in range(1, len(data)):
        parser = parse(data[:cut], data[cut:])
        assert (parser.status, parser.headers, parser.is_over, parser.keep_alive) == (
            whole.status,
            whole.headers,
            True,
            whole.keep_alive,
        )
        assert b"".join(parser.pieces) == body, cut
    assert b"".join(parse(*(data[i : i + 1] for i in range(len(data)))).pieces) == body


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("cleanly", [True, False])
def test_a_response_that_ends_anywhere_before_its_end_is_cut(name: str, cleanly: bool) -> None:
    """U16.b: a connection's end is not the body's, however clean; what came before it is kept."""
    data = WHOLE[name]
    for cut in range(len(data)):
        parser = parse(data[:cut])
        begun = parser.has_begun
        parser.end(cleanly=cleanly)
        assert not parser.is_over
        assert isinstance(parser.failure, ResponseCutError if begun else NoResponseError), cut
        assert b"one two three".startswith(b"".join(parser.pieces))


def test_only_a_body_without_a_length_ends_with_its_connection_and_only_cleanly() -> None:
    """A reset is no end."""
    for cleanly in (True, False):
        parser = parse(OK + b"\r\none")
        parser.end(cleanly=cleanly)
        assert (parser.is_over, parser.take(), parser.keep_alive) == (cleanly, b"one", False)
        assert (parser.failure is None) is cleanly


def test_the_end_of_the_connection_changes_nothing_about_a_body_that_is_over() -> None:
    """Nor about one that has failed already."""
    parser = parse(WHOLE["a length"])
    parser.end(cleanly=False)
    assert (parser.is_over, parser.failure) == (True, None)
    failed = parse(OK + b"Content-Encoding: br\r\nContent-Length: 3\r\n\r\n")
    first = failed.failure
    failed.end(cleanly=False)
    assert isinstance(first, NotHttpError)
    assert failed.failure is first


@pytest.mark.parametrize("again", [b"HTTP/1.1 200 OK\r\n", b"more than was promised"])
def test_what_comes_behind_a_response_is_not_http(again: bytes) -> None:
    """One was asked for."""
    parser = parse(WHOLE["a length"])
    with pytest.raises(NOT_HTTP):
        parser.feed(again)
    assert (parser.is_over, parser.take(), parser.status) == (True, b"one two three", 200)


def test_what_nobody_wants_is_passed_over_and_its_end_is_seen() -> None:
    """A connection can be used again once the rest has come."""
    data = WHOLE["chunks"]
    half = data.index(b"9;x")
    parser = parse(data[:half])
    assert parser.take() == b"one "
    parser.is_unwanted = True
    parser.feed(data[half:])
    assert (parser.pieces, parser.unread_bytes, parser.is_over) == ([], 0, True)


def test_headers_that_do_not_end_are_not_http() -> None:
    """However small the pieces in which they come."""
    parser = parse(OK)
    for _ in range(1025):
        parser.feed(b"X: " + b"y" * 59 + b"\r\n")
        parser.check_head(64)
    assert isinstance(parser.failure, NotHttpError)
