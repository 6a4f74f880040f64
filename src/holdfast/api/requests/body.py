"""Reading a request's body: bounded, JSON, an object (C12, S7).

Turns every way in which that can go wrong into a RequestError that names what is wrong. Sits on the vocabulary.
"""

import asyncio
import re
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from holdfast.api.requests.headers import header_number, headers_of
from holdfast.api.service import service_of
from holdfast.api.streams.disconnect import ClientLeftError
from holdfast.aside import run_aside
from holdfast.errors import RequestError

T = TypeVar("T")

DISCARD_BYTES: Final = 50_000_000
DRAIN_SECONDS: Final = 5.0
"""How much of a body that is too large is read and thrown away, and for how long, so that the client, which is still
sending, gets to see the answer instead of a reset."""


MAX_DEPTH: Final = 100
"""What is nested deeper than this could be read and not written again."""
MAX_VALUES: Final = 300_000
"""A body within the limit of bytes could hold millions of numbers, lists and objects; reading them takes seconds."""
MANY_VALUES: Final = 10_000
"""A body that may have so many is read on another thread."""
MAX_DIGITS: Final = 1_000
"""In one number; what a number of many digits costs grows with their square."""
_DIGITS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _read_float(text: str) -> float:
    """A number with a point or an exponent. Not `float` itself: where Python is called, other threads get a turn."""
    return float(text)


# With msgspec's own reading a number such as 1e300 takes 40 microseconds.
_decode = msgspec.json.Decoder(float_hook=_read_float).decode


async def read_body(request: Request) -> bytes:
    """The whole body.

    Raises:
        RequestError: it is over the limit (413), or encoded (415), or its key was revoked meanwhile (401).
        ClientLeftError: it never came whole.
    """
    service = service_of(request)
    limit = service.settings.server.max_body_bytes
    headers = headers_of(request.scope)
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(f"Content-Encoding {encoding!r} is not understood.", status=415, code="unsupported_encoding")
    if (header_number(headers.get("content-length", "")) or 0) > limit:
        if headers.get("expect", "").lower() != "100-continue":
            await _discard(request)
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientLeftError
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            if message.get("more_body", False):
                await _discard(request)
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            service.keyring.require_good(service.caller)
            return b"".join(pieces)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"The body is over the limit of {limit} bytes (server.max_body_bytes).", status=413, code="body_too_large"
    )


async def _discard(request: Request) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            discarded = 0
            while discarded < DISCARD_BYTES:
                message = await request.receive()
                discarded += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        RequestError: it is not JSON, or not an object (400), or as `read_body`.
    """
    return await parse_object(await read_body(request))


async def read_parsed(request: Request, parse: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T]:
    """The body as a JSON object, and what it means; of a large one both are found out on another thread.

    Raises:
        RequestError: as `read_object` and `parse` do.
    """
    return await parse_body(await read_body(request), parse)


async def parse_object(body: bytes) -> dict[str, Any]:
    """Bytes as a JSON object.

    Raises:
        RequestError: they are not one, or one that is too much to read.
    """
    return (await parse_body(body, lambda _: None))[0]


async def parse_body(body: bytes, parse: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T]:
    """Bytes as a JSON object, and what it means.

    Raises:
        RequestError: they are not one, or one that is too much to read; or as `parse` does.
    """
    # Nothing has more values than these, whatever stands in its strings; nearly every body is let through here.
    most = body.count(b",") + body.count(b"[") + body.count(b"{")
    if most > MAX_VALUES or (len(body) > MAX_DIGITS and b"0" * MAX_DIGITS in body.translate(_DIGITS)):
        await asyncio.to_thread(_check_values, body)

    def read() -> tuple[dict[str, Any], T]:
        parsed = _decode_object(body, may_be_deep=most > MAX_DEPTH)
        return parsed, parse(parsed)

    return await run_aside(most >= MANY_VALUES, read)


def _decode_object(body: bytes, *, may_be_deep: bool) -> dict[str, Any]:
    try:
        parsed = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"Invalid JSON in the request body: {error}.", code="invalid_json") from None
    except RecursionError:
        raise RequestError("Invalid JSON in the request body: it is nested too deeply.", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise RequestError("The request body must be a JSON object.", code="invalid_body")
    if may_be_deep and _is_deeper(parsed, MAX_DEPTH):
        raise RequestError(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="invalid_body")
    return parsed


def _check_values(body: bytes) -> None:
    """Count what is outside of strings: piece by piece, so that others get their turn meanwhile."""
    count, start = 0, 0
    for end, onward in chain((string.span() for string in _STRING.finditer(body)), [(len(body), 0)]):
        count += _count_values(body[start:end])
        start = onward
        if count > MAX_VALUES:
            raise RequestError(
                f"The request body has over {MAX_VALUES:,} values (numbers, texts, lists, objects); send fewer.",
                code="invalid_body",
            )


def _count_values(piece: bytes) -> int:
    if len(piece) > MAX_DIGITS and b"0" * MAX_DIGITS in piece.translate(_DIGITS):
        raise RequestError(f"The request body has a number of over {MAX_DIGITS:,} digits.", code="invalid_body")
    return piece.count(b",") + piece.count(b"[") + piece.count(b"{")


def _is_deeper(value: Any, levels: int) -> bool:
    nested = [value]
    for _ in range(levels + 1):
        nested = [
            child
            for one in nested
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not nested:
            return False
    return True


_AT = re.compile(r" - at `\$?\.?(?P<path>.*)`$")


def convert(value: Any, kind: type[T], *, at: str = "") -> T:
    """A decoded value as a struct. Lax: `"true"`, `"false"`, 0 and 1 are booleans (C1); unknown fields are passed over.

    Args:
        value: what came out of the JSON.
        kind: what it should be.
        at: where it stands in the body, for the error's param.

    Raises:
        RequestError: it does not fit; param says where.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        match = _AT.search(text)
        inner = match["path"] if match else ""
        missing = re.search(r"missing required field `(\w+)`", text)
        if missing:
            inner = f"{inner}.{missing[1]}" if inner else missing[1]
        joint = "." if at and inner and not inner.startswith("[") else ""
        raise _misfit(f"{at}{joint}{inner}", _AT.sub("", text)) from None
    except RecursionError:
        raise _misfit(at, "nested too deeply") from None


def _misfit(param: str, reason: str) -> RequestError:
    message = f"{param}: {reason}." if param else f"{reason}."
    return RequestError(message, param=param or None, code="invalid_value")
