"""Where the network cuts a body makes no difference, and no bytes make a decoder raise."""

from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import encode

from holdfast.config import WireProtocol
from holdfast.errors import TransportLostError, UpstreamError
from holdfast.events import Answered, Delta, ToolCallBegan
from holdfast.ids import CallId
from holdfast.upstream.protocols.codecs import CODECS
from holdfast.upstream.protocols.responses.decode import LenientResponsesDecoder
from holdfast.upstream.protocols.stream_decoder import StreamDecoder
from tests.codec_world import CALL, PAIRS, PROTOCOLS, STREAMS, codec_of, decode, recorded, recorded_plain


def without_made_ids(deltas: list[Delta]) -> list[Delta]:
    """Ids that the codec had to make are new each time."""
    return [
        ToolCallBegan(index=delta.index, call_id=CallId("made"), name=delta.name)
        if isinstance(delta, ToolCallBegan) and len(delta.call_id) > 20
        else delta
        for delta in deltas
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_anywhere_gives_the_same_deltas(name: str) -> None:
    codec, body = codec_of(name), recorded(name)
    whole = without_made_ids(decode(codec, body))
    assert isinstance(whole[-1], Answered)
    for cut in range(1, len(body)):
        assert without_made_ids(decode(codec, body[:cut], body[cut:])) == whole, cut


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_gives_the_same_deltas(name: str) -> None:
    codec, body = codec_of(name), recorded(name)
    single = decode(codec, *(body[i : i + 1] for i in range(len(body))))
    assert without_made_ids(single) == without_made_ids(decode(codec, body))


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_ends_anywhere_is_whole_only_if_its_finish_reason_has_come(name: str) -> None:
    codec, body = codec_of(name), recorded(name)
    for cut in range(0, len(body), 7):
        decoder = codec.decoder(CALL)
        deltas = decoder.feed(body[:cut])
        if not decoder.done:
            try:
                deltas += decoder.end()
            except TransportLostError:
                assert not decoder.finished
                assert not any(isinstance(delta, Answered) for delta in deltas)
                continue
        assert decoder.finished
        assert isinstance(deltas[-1], Answered)


def push(decoder: StreamDecoder, pieces: list[bytes]) -> None:
    """Feed must not raise; the end may raise errors of the tree alone."""
    deltas = [delta for piece in pieces for delta in decoder.feed(piece)]
    try:
        deltas += decoder.end()
    except UpstreamError:
        assert not any(isinstance(delta, Answered) for delta in deltas)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: b"data: " + data + b"\n\n")))
def test_random_bytes_never_raise(protocol: WireProtocol, pieces: list[bytes]) -> None:
    push(CODECS[protocol].decoder(CALL), pieces)
    push(LenientResponsesDecoder(CALL), pieces)


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stream_with_broken_bytes_never_raises(name: str, data: st.DataObject) -> None:
    body = bytearray(recorded(name))
    for _ in range(data.draw(st.integers(1, 6))):
        where = data.draw(st.integers(0, len(body) - 1))
        body[where : where + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    push(codec_of(name).decoder(CALL), [bytes(body)])


NAMES = (
    "type delta choices content tool_calls function arguments name id index usage error item response output message "
    "content_block text thinking reasoning_details x_groq status summary model metadata raw detail"
).split()
WORDS = ["", "x", "error", "text", "thinking", "stop", "429", "{}", "message", "function_call", "reasoning", "tool_use"]


def strange(random: Random, depth: int = 0) -> object:
    """Some JSON value."""
    kind = random.randrange(3) if depth > 3 else random.randrange(6)
    match kind:
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.choice([-1, 0, 1, 404, 1e300, 1.5, 2**70])
        case 2:
            return random.choice(WORDS)
        case 3:
            return [strange(random, depth + 1) for _ in range(random.randrange(3))]
        case _:
            return {random.choice(NAMES): strange(random, depth + 1) for _ in range(random.randrange(4))}


def disturb(value: object, random: Random, rate: float) -> object:
    """The same value with parts of it gone, or replaced by what does not belong there."""
    if random.random() < rate:
        return strange(random)
    match value:
        case dict():
            return {key: disturb(inner, random, rate) for key, inner in value.items() if random.random() > rate}
        case list():
            return [disturb(inner, random, rate) for inner in value]
        case _:
            return value


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=30, deadline=None)
@given(random=st.randoms(use_true_random=False), rate=st.sampled_from([0.01, 0.05, 0.15]))
def test_known_names_in_strange_shapes_never_raise(name: str, random: Random, rate: float) -> None:
    codec, body = codec_of(name), b""
    for block in recorded(name).replace(b"\r\n", b"\n").split(b"\n\n"):
        head, found, data = block.partition(b"data: {")
        if found:
            body += head + b"data: " + encode(disturb(msgspec.json.decode(b"{" + data), random, rate)) + b"\n\n"
    decoders = [codec.decoder(CALL)]
    if codec.lenient_decoder is not None:
        decoders.append(codec.lenient_decoder(CALL))
    for decoder in decoders:
        decoder.feed(body)
        with suppress(UpstreamError):
            decoder.end()
    if name in PAIRS:
        with suppress(UpstreamError):
            codec.parse_answer(encode(disturb(msgspec.json.decode(recorded_plain(name)), random, rate)), CALL)
    assert isinstance(codec.parse_error(400, encode(strange(random)), random.choice(WORDS)), UpstreamError)
