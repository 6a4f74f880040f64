"""Asking a provider over HTTP: the only module that opens connections to models (U10, U11, U14, U16, U17).

Posts what a codec encodes, feeds it what comes, and turns every way a connection can fail into an error of the tree.
A call that is not over when its reader leaves has its connection cut at once. Retries and fallback sit above; what the
bytes mean is the codec's business.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast.config import StreamSettings
from holdfast.errors import (
    ConfigError,
    ProtocolError,
    ProviderRefusedError,
    StreamingUnsupportedError,
    StreamStalledError,
    TransportLostError,
    UpstreamError,
)
from holdfast.events import Delta, UpstreamRetried
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.port import ModelCall
from holdfast.upstream.protocols.codec import Codec, Decoder
from holdfast.upstream.providers import Provider
from holdfast.upstream.stream_reader import AFTER_FINISH_SECONDS, Reading, named
from holdfast.upstream.transport.http1 import (
    Answer,
    AnswerCutError,
    Connections,
    NoAnswerError,
    NotConnectedError,
    NotHttpError,
    make_tls,
)
from holdfast.upstream.transport.watchdog import Watchdog

MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024

_LOST: Final = (AnswerCutError, NotHttpError, UpstreamError)
"""All that reading an answer can raise; UpstreamError is what the watchdog puts there."""
_E = TypeVar("_E", bound=UpstreamError)


@runtime_checkable
class LenientCodec(Protocol):
    """A codec whose protocol has a second, more forgiving form (U11)."""

    def make_lenient_decoder(self, call: ModelCall) -> Decoder:
        """For a body that the strict decoder could not make sense of."""
        ...


class HttpUpstream:
    """One provider. Takes `provider/model` or the bare model's name, and answers as `provider/model`."""

    def __init__(
        self,
        provider: Provider,
        codec: Codec,
        settings: StreamSettings,
        *,
        make_tls: Callable[[], ssl.SSLContext] = make_tls,
    ) -> None:
        """Raises ConfigError: its key or its headers cannot be sent."""
        self._provider = provider
        self._codec = codec
        self._settings = settings
        self._lenient = codec if isinstance(codec, LenientCodec) else None
        self._unable_to_stream: set[str] = set()
        """Models that said so; they are not asked again while the process lives."""
        self._who = f"{provider.name} ({provider.host})"
        self._silence = f"{self._who} sent nothing for {settings.stall_seconds:g} seconds."
        self._late = f"{self._who} did not begin to answer in time."
        self._connections = Connections(
            f"{provider.base_url}/{codec.path.lstrip('/')}",
            connect_seconds=settings.connect_seconds,
            make_tls=make_tls,
        )
        self._stream_head = self._head("text/event-stream")
        self._plain_head = self._head("application/json")

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        """Ask, and push what each read brings; a model that cannot stream is asked for a plain answer (U10)."""
        call = self._own(call)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.first_byte_seconds
        answer = None
        if call.model not in self._unable_to_stream:
            try:
                answer = await self._ask(call, deadline, stream=True)
            except StreamingUnsupportedError as error:
                self._unable_to_stream.add(call.model)
                reason = error.message
                await send(sink, [UpstreamRetried(model=self._name(call), attempt=1, error=reason, wait_seconds=0.0)])
        if answer is None:
            await send(sink, await self._ask_plainly(call))
            return
        watchdog = Watchdog(answer, deadline - loop.time(), self._late)
        reading = self._reading(call, sink, watchdog)
        try:
            if answer.content_type.endswith("json"):
                # Asked to stream, and it answered in one piece; that is an answer too.
                deltas = self._parse_answer(await self._read_whole(answer, watchdog), call)
                reading.is_whole = True
                await send(sink, deltas)
                return
            while not reading.is_over:
                watchdog.is_waiting = True
                try:
                    if await answer.follow(reading.take):
                        reading.end(None)
                except _LOST as error:
                    reading.end(self._lost(error))
                if not reading.is_over:
                    watchdog.is_waiting = False
                    await sink.drain()
                    watchdog.heard_at = loop.time()
            if reading.failure is not None:
                raise self._refused(reading.failure)
        finally:
            watchdog.close()
            self._part(answer, whole=reading.is_whole)

    def _reading(self, call: ModelCall, sink: DeltaSink, watchdog: Watchdog) -> Reading:
        lenient = self._lenient
        return Reading(
            self._codec.make_decoder(call),
            sink,
            watchdog,
            model=self._name(call),
            stall_seconds=self._settings.stall_seconds,
            silence=self._silence,
            make_lenient=partial(lenient.make_lenient_decoder, call) if lenient is not None else None,
        )

    async def aclose(self) -> None:
        """Drop every connection."""
        self._connections.close()

    async def _ask_plainly(self, call: ModelCall) -> list[Delta]:
        """Ask without streaming: the whole answer is one batch."""
        # Nothing comes before all of the answer is made, so that silence is all there is to measure.
        patience_seconds = max(self._settings.first_byte_seconds, self._settings.stall_seconds)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        answer = await self._ask(call, deadline, stream=False)
        watchdog = Watchdog(answer, self._settings.stall_seconds, self._silence)
        whole = False
        try:
            deltas = self._parse_answer(await self._read_whole(answer, watchdog), call)
            whole = True
        finally:
            watchdog.close()
            self._part(answer, whole=whole)
        return deltas

    def _own(self, call: ModelCall) -> ModelCall:
        own = call.model.removeprefix(f"{self._provider.name}/")
        return call if own == call.model else msgspec.structs.replace(call, model=own)

    def _name(self, call: ModelCall) -> str:
        return f"{self._provider.name}/{call.model}"

    def _head(self, accept: str) -> bytes:
        """A request up to its length, made once for all calls."""
        given = {
            "Content-Type": "application/json",
            "Accept": accept,
            "Accept-Encoding": "identity",  # a compressor on the way would hold tokens back
            "User-Agent": f"holdfast/{__version__}",
            **self._codec.headers(self._provider.api_key),
        }
        own = {name.lower() for name in self._provider.headers}
        # Each once, however the settings write its name: a server may take either of two, or refuse both.
        headers = {name: value for name, value in given.items() if name.lower() not in own}
        headers.update(self._provider.headers)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        try:
            encoded = lines.encode("latin-1")
        except UnicodeEncodeError:
            encoded = b""
        if encoded.count(b"\n") != len(headers) or encoded.count(b"\r") != len(headers) or b"\0" in encoded:
            raise ConfigError(
                f"The key or a header of providers.{self._provider.name} has a character that cannot be sent in a "
                "header: a line break, or one that is not Latin-1."
            )
        first, host = self._connections.request_line.splitlines(keepends=True)
        return first + encoded if "host" in own else first + host + encoded

    async def _ask(self, call: ModelCall, deadline: float, *, stream: bool) -> Answer:
        """Post the call; an answer is 2xx, everything else is raised with its connection closed."""
        body = self._codec.encode_request(call, stream=stream)
        head = self._stream_head if stream else self._plain_head
        try:
            async with asyncio.timeout_at(deadline) as patience:
                answer = await self._connections.ask(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        except TimeoutError:
            if patience.expired():
                raise StreamStalledError(self._late) from None
            seconds = self._settings.connect_seconds
            raise StreamStalledError(f"No connection to {self._who} within {seconds:g} seconds.") from None
        except (NotConnectedError, NoAnswerError, NotHttpError) as error:
            raise self._lost(error) from error
        if answer.status >= 300:
            raise await self._error_of(answer)
        return answer

    async def _error_of(self, answer: Answer) -> UpstreamError:
        watchdog = Watchdog(answer, AFTER_FINISH_SECONDS, self._silence)
        body = b""
        try:
            while len(body) < MAX_ERROR_BYTES and (data := await answer.read()):
                body += data
        except _LOST:
            pass  # The status says enough; what came of the explanation is kept.
        finally:
            watchdog.close()
            self._part(answer, whole=answer.is_over)
        if answer.status < 400:
            where = urlsplit(answer.headers.get("location", "")).netloc or "another address"
            return ProviderRefusedError(
                f"{self._who} redirects to {where}; redirects are not followed with a key. "
                f"Set providers.{self._provider.name}.base_url to the right address.",
                status=answer.status,
            )
        retry_after = answer.headers.get("retry-after")
        milliseconds = answer.headers.get("retry-after-ms", "")
        if milliseconds.isdecimal():
            retry_after = str(int(milliseconds) / 1000)
        return self._without_key(self._codec.parse_error(answer.status, body[:MAX_ERROR_BYTES], retry_after))

    async def _read_whole(self, answer: Answer, watchdog: Watchdog) -> bytes:
        pieces: list[bytes] = []
        size = 0
        watchdog.allow(self._settings.stall_seconds, self._silence)
        try:
            while data := await answer.read():
                pieces.append(data)
                size += len(data)
                watchdog.heard_at = asyncio.get_running_loop().time()
                if size > MAX_ANSWER_BYTES:
                    raise ProtocolError(f"{self._who} sent an answer of more than {MAX_ANSWER_BYTES} bytes.")
        except (AnswerCutError, NotHttpError) as error:
            raise self._lost(error) from error
        return b"".join(pieces)

    def _parse_answer(self, body: bytes, call: ModelCall) -> list[Delta]:
        try:
            return named(self._codec.parse_answer(body, call), self._name(call))
        except UpstreamError as error:
            raise self._refused(error) from None

    def _refused(self, error: UpstreamError) -> UpstreamError:
        """An error that came inside a 2xx answer."""
        if isinstance(error, ProviderRefusedError):
            error.in_stream = True
        return self._without_key(error)

    def _without_key(self, error: _E) -> _E:
        key = self._provider.api_key
        if key and key in error.message:
            error.message = error.message.replace(key, "[key]")
            error.args = (error.message,)
        return error

    def _lost(self, error: BaseException) -> UpstreamError:
        """Why a connection failed, in a sentence without addresses that could hold a secret."""
        match error:
            case UpstreamError():
                return error
            case NotConnectedError():
                return TransportLostError(self._why_not_connected(error.__cause__))
            case AnswerCutError():
                return TransportLostError(f"The connection to {self._who} was lost in the middle of the answer.")
            case NoAnswerError():
                return TransportLostError(f"{self._who} closed the connection without an answer.")
            case _:
                return ProtocolError(f"What {self._who} answered is not HTTP: {error}")

    def _why_not_connected(self, cause: BaseException | None) -> str:
        match cause:
            case socket.gaierror():
                return f"The host of {self._who} was not found."
            case ssl.SSLCertVerificationError():
                return f"The certificate of {self._who} is not trusted: {cause.verify_message}"
            case ssl.SSLError():
                return f"No secure connection to {self._who}: {cause.reason}"
            case OSError(errno=int() as number):
                return f"Could not connect to {self._who}: {os.strerror(number)}."
            case _:
                return f"Could not connect to {self._who}: {cause}."

    def _part(self, answer: Answer, *, whole: bool) -> None:
        """Back to the pool if the answer is whole and its body ends soon, else cut (U17)."""
        if whole:
            answer.release()
        else:
            answer.cut()
