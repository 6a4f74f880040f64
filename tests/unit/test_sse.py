"""The event-stream grammar, at every cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sse import SseDecoder, SseFrame

CASES: list[tuple[bytes, list[SseFrame]]] = [
    (b"data: one\n\ndata: two\n\n", [("", b"one", ""), ("", b"two", "")]),
    (b"data: one\r\n\r\ndata: two\r\n\r\n", [("", b"one", ""), ("", b"two", "")]),
    (b"data: one\r\rdata: two\r\r", [("", b"one", ""), ("", b"two", "")]),
    (b"data: one\r\n\ndata: two\n\r\n", [("", b"one", ""), ("", b"two", "")]),
    (b"event: ping\ndata: {}\n\ndata: x\n\n", [("ping", b"{}", ""), ("", b"x", "")]),
    (b"data: x\nevent: late\n\n", [("late", b"x", "")]),
    (b"data:no space\n\ndata:  two spaces\n\n", [("", b"no space", ""), ("", b" two spaces", "")]),
    (b"data: a\ndata: b\ndata:\ndata: c\n\n", [("", b"a\nb\n\nc", "")]),
    (b": keepalive\n\n:\n\n: one line\ndata: x\n\n", [("", b"x", "")]),
    (b"\xef\xbb\xbfdata: bom\n\n\xef\xbb\xbfdata: not at the start\n\n", [("", b"bom", "")]),
    (b"event: nothing\n\ndata: x\n\n", [("", b"x", "")]),
    (b"id: 7\nretry: 10\nunknown: y\nnocolon\ndata: x\n\n", [("", b"x", "7")]),
    (b"id: 0\ndata: a\n\ndata: b\nid:1\n\ndata: none\n\n", [("", b"a", "0"), ("", b"b", "1"), ("", b"none", "")]),
    (b"id: 9\n\ndata: the id was of no frame\n\n", [("", b"the id was of no frame", "")]),
    (b"id\ndata: x\n\nid: 5\nid: 6\ndata: the last counts\n\n", [("", b"x", ""), ("", b"the last counts", "6")]),
    (
        # A run's log, as a server writes it, with what a newer one might add.
        b': attached\nid: 0\nevent: a\ndata: {"x":\ndata: 1}\n\n: keepalive\nid: 1\r\nevent: b\r\ndata: 2\r\n\r\n'
        b"future: field\nevent: c\ndata:3\n\nid: 9\n\n",
        [("a", b'{"x":\n1}', "0"), ("b", b"2", "1"), ("c", b"3", "")],
    ),
    (b"data\n\ndata:\n\n", [("", b"", ""), ("", b"", "")]),
    (b"\n\n\n\ndata: x\n\n\n\n\ndata: y\n\n", [("", b"x", ""), ("", b"y", "")]),
    ("event: größe\ndata: Zürich 🦀\nid: ß\n\n".encode(), [("größe", "Zürich 🦀".encode(), "ß")]),
    (b"database: no\n\ndatum: no\n\ndata : no\n\n", []),
    (b"data: last\n", [("", b"last", "")]),
    (b"data: [DONE]", [("", b"[DONE]", "")]),
    (b"data: [DONE]\r", [("", b"[DONE]", "")]),
    (b'{"error": {"message": "no stream"}}', [("", b'{"error": {"message": "no stream"}}', "")]),
    (b' {"error":\r\n "no stream"}\n\n', [("", b' {"error":\n "no stream"}\n\n', "")]),
    (b'[{"error": 1}]\n', [("", b'[{"error": 1}]\n', "")]),
    (b'data: x\n\n{"error": 1}\n\n', [("", b"x", "")]),
    (b'[a line of a log]\n{"another": 1}\n\ndata: x\n\n', [("", b"x", "")]),
    (b"[a line of a log]\ndata: x", [("", b"x", "")]),
    (b"event: only\n", []),
    (b"", []),
]


def decode(*pieces: bytes, max_frame_bytes: int = 1 << 20) -> list[SseFrame]:
    decoder = SseDecoder(max_frame_bytes)
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    return frames + decoder.end()


@pytest.mark.parametrize(("body", "frames"), CASES)
def test_a_body_gives_the_same_frames_wherever_it_is_cut(body: bytes, frames: list[SseFrame]) -> None:
    assert decode(body) == frames
    for cut in range(len(body) + 1):
        assert decode(body[:cut], body[cut:]) == frames, cut
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == frames


@settings(max_examples=300, deadline=None)
@given(
    body=st.lists(
        st.sampled_from(
            [b"\n", b"\r", b"\r\n", b"data: ", b"data:", b"event: ", b"id: ", b": ", b"a", b"\xf0\x9f\xa6\x80", b"{"]
        ),
        max_size=25,
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_random_bodies_do_not_depend_on_their_cuts(body: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decode(*(body[start:end] for start, end in pairwise(edges))) == decode(body)


def test_frames_are_given_as_soon_as_they_are_whole() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\ndata: tw") == [("", b"one", "")]
    assert decoder.feed(b"o\r") == []
    assert decoder.feed(b"\r") == [("", b"two", "")]


@pytest.mark.parametrize(
    "body",
    [
        b"data: ok\n\ndata: " + b"x" * 100 + b"\n\ndata: after\n\n",
        b"data: ok\n\n" + b"data: xxxxxx\n" * 20 + b"\ndata: after\n\n",
        b"data: ok\n\n: " + b"x" * 100 + b"\n\ndata: after\n\n",
        b"data: ok\n\nid: " + b"1" * 100 + b"\ndata: long id\n\ndata: after\n\n",
        b"data: ok\n\ndata: " + b"x" * 100,
    ],
)
def test_a_frame_over_the_limit_ends_the_stream_and_keeps_what_came_before(body: bytes) -> None:
    for cut in range(len(body) + 1):
        decoder = SseDecoder(max_frame_bytes=64)
        frames = decoder.feed(body[:cut]) + decoder.feed(body[cut:])
        assert decoder.overflowed, cut
        assert frames + decoder.end() == [("", b"ok", "")], cut


def test_a_frame_at_the_limit_is_a_frame() -> None:
    body = b"data: " + b"x" * 58 + b"\n\n"
    for cut in range(len(body) + 1):
        decoder = SseDecoder(max_frame_bytes=64)
        assert decoder.feed(body[:cut]) + decoder.feed(body[cut:]) == [("", b"x" * 58, "")]
        assert not decoder.overflowed


def test_a_long_frame_in_many_reads_is_joined_in_linear_time() -> None:
    decoder = SseDecoder()
    piece = b"x" * 1024
    decoder.feed(b"data: ")
    for _ in range(8 * 1024):
        assert decoder.feed(piece) == []
    assert [len(data) for _, data, _ in decoder.feed(b"\n\n")] == [8 * 1024 * 1024]
