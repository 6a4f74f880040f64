"""Asking a provider over HTTP (U10, U11, U14, U16, U17).

Posts what a codec encodes, has what comes read, and turns every way a connection can fail into an error of the tree.
A call that is not over when its reader leaves has its connection cut at once. `retry` sits above, built over this by
`provider_upstreams`. Below: `transport`, of which it knows only the port, `protocols`, whose business it is what the
bytes mean, and `stream_reader`, which stands between the two while an answer flows.
"""

import asyncio
import os
import socket
import ssl
from functools import partial
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.aside import are_many, is_many, run_aside
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
from holdfast.messages import AssistantMessage, UserMessage
from holdfast.sinks import DeltaSink, send
from holdfast.upstream.port import ModelCall
from holdfast.upstream.protocols.codec import Codec
from holdfast.upstream.providers import Provider
from holdfast.upstream.secrets import Redactor
from holdfast.upstream.stream_reader import AFTER_FINISH_SECONDS, StreamReader, with_model
from holdfast.upstream.transport.port import (
    NoResponseError,
    NotConnectedError,
    Post,
    ResponseCutError,
    Transport,
    TransportError,
    TransportResponse,
)
from holdfast.upstream.transport.watchdog import Watchdog, late_timeout_at
from holdfast.version import __version__

MAX_ERROR_BYTES: Final = 64 * 1024
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024

_LOST: Final = (TransportError, UpstreamError)
"""All that reading a response can raise; UpstreamError is what the watchdog puts there."""
_E = TypeVar("_E", bound=UpstreamError)


class HttpUpstream:
    """One provider. Takes `provider/model` or the bare model's name, and answers as `provider/model`."""

    def __init__(
        self,
        provider: Provider,
        codec: Codec,
        settings: StreamSettings,
        transport: Transport,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Raises ConfigError: its key or its headers cannot be sent."""
        self._provider = provider
        self._codec = codec
        self._settings = settings
        self._transport = transport
        self._max_response_bytes = max_response_bytes
        self._unable_to_stream: set[str] = set()
        """Models that said so; they are not asked again while the process lives."""
        self._redactor = Redactor(provider)
        self._who = f"{provider.name} ({provider.host})"
        self._silence = f"{self._who} sent nothing for {settings.stall_seconds:g} seconds."
        self._late = f"{self._who} did not begin to answer in time."
        self._post_streamed = transport.prepare(codec.path, self._headers("text/event-stream"))
        self._post_plain = transport.prepare(codec.path, self._headers("application/json"))
        count_path = codec.count_path
        self._post_count = transport.prepare(count_path, self._headers("application/json")) if count_path else None

    async def ask(self, call: ModelCall, sink: DeltaSink) -> None:
        """Ask, and push what each read brings; a model that cannot stream is asked for a plain answer (U10)."""
        call = self._own(call)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.first_byte_seconds
        response = None
        if call.model not in self._unable_to_stream:
            try:
                response = await self._post(call, deadline, stream=True)
            except StreamingUnsupportedError as error:
                self._unable_to_stream.add(call.model)
                reason = error.message
                await send(sink, [UpstreamRetried(model=self._name(call), attempt=1, error=reason, wait_seconds=0.0)])
        if response is None:
            await send(sink, await self._ask_plainly(call))
            return
        watchdog = Watchdog(response, deadline - loop.time(), self._late)
        reader = self._make_reader(call, sink, watchdog)
        try:
            if _content_type(response).endswith("json"):
                # Asked to stream, and it answered in one piece; that is an answer too.
                deltas = self._parse_answer(await self._read_whole(response, watchdog), call)
                reader.is_whole = True
                await send(sink, deltas)
                return
            while not reader.is_over:
                try:
                    if await response.stream_to(reader):
                        reader.end(None)
                except _LOST as error:
                    reader.end(self._lost(error))
                if not reader.is_over:
                    await reader.drain()
            if reader.failure is not None:
                raise self._refused(reader.failure)
        finally:
            watchdog.close()
            self._part(response, whole=reader.is_whole)

    async def count_tokens(self, call: ModelCall) -> int | None:
        """How many tokens a call has; None: the protocol has no way to ask. Asked once.

        Raises:
            UpstreamError: the provider did not say.
        """
        if self._post_count is None:
            return None
        body = await run_aside(_is_long(call), self._codec.encode_count, self._own(call))
        deadline = asyncio.get_running_loop().time() + self._settings.first_byte_seconds
        response = await self._send(self._post_count, body, deadline)
        watchdog = Watchdog(response, self._settings.stall_seconds, self._silence)
        count = None
        try:
            count = self._codec.parse_count(await self._read_whole(response, watchdog))
        finally:
            watchdog.close()
            self._part(response, whole=count is not None)
        return count

    def _make_reader(self, call: ModelCall, sink: DeltaSink, watchdog: Watchdog) -> StreamReader:
        lenient = self._codec.lenient_decoder
        return StreamReader(
            self._codec.decoder(call),
            sink,
            watchdog,
            model=self._name(call),
            stall_seconds=self._settings.stall_seconds,
            silence=self._silence,
            make_lenient=partial(lenient, call) if lenient is not None else None,
        )

    async def aclose(self) -> None:
        """Drop every connection."""
        self._transport.close()

    async def _ask_plainly(self, call: ModelCall) -> list[Delta]:
        """Ask without streaming: the whole answer is one batch."""
        # Nothing comes before all of the answer is made, so that silence is all there is to measure.
        patience_seconds = max(self._settings.first_byte_seconds, self._settings.stall_seconds)
        deadline = asyncio.get_running_loop().time() + patience_seconds
        response = await self._post(call, deadline, stream=False)
        watchdog = Watchdog(response, self._settings.stall_seconds, self._silence)
        whole = False
        try:
            deltas = self._parse_answer(await self._read_whole(response, watchdog), call)
            whole = True
        finally:
            watchdog.close()
            self._part(response, whole=whole)
        return deltas

    def _own(self, call: ModelCall) -> ModelCall:
        own = call.model.removeprefix(f"{self._provider.name}/")
        return call if own == call.model else msgspec.structs.replace(call, model=own)

    def _name(self, call: ModelCall) -> str:
        return f"{self._provider.name}/{call.model}"

    def _headers(self, accept: str) -> dict[str, str]:
        """Those of every request: ours, the protocol's, the provider's own."""
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
        if not all(map(_is_sendable, (*headers, *headers.values()))):
            raise ConfigError(
                f"The key or a header of providers.{self._provider.name} has a character that cannot be sent in a "
                "header: a line break, or one that is not Latin-1."
            )
        return headers

    async def _post(self, call: ModelCall, deadline: float, *, stream: bool) -> TransportResponse:
        """Post the call; what is returned is 2xx, everything else is raised with its connection given back or cut."""
        encode = partial(self._codec.encode_request, call, stream=stream)
        # A long conversation takes its time to write down, and others' tokens are not to wait for it.
        body = await run_aside(_is_long(call), encode)
        return await self._send(self._post_streamed if stream else self._post_plain, body, deadline)

    async def _send(self, post: Post, body: bytes, deadline: float) -> TransportResponse:
        try:
            async with late_timeout_at(deadline) as patience:
                response = await post(body)
        except TimeoutError:
            if patience.expired():
                raise StreamStalledError(self._late) from None
            seconds = self._settings.connect_seconds
            raise StreamStalledError(f"No connection to {self._who} within {seconds:g} seconds.") from None
        except TransportError as error:
            raise self._lost(error) from error
        if response.status >= 300:
            raise await self._error_of(response)
        return response

    async def _error_of(self, response: TransportResponse) -> UpstreamError:
        watchdog = Watchdog(response, AFTER_FINISH_SECONDS, self._silence)
        body = b""
        try:
            while len(body) < MAX_ERROR_BYTES and (data := await response.read()):
                body += data
        except _LOST:
            pass  # The status says enough; what came of the explanation is kept.
        finally:
            watchdog.close()
            self._part(response, whole=response.is_over)
        if response.status < 400:
            where = _host_of(response.headers.get("location", "")) or "another address"
            return ProviderRefusedError(
                f"{self._who} redirects to {where}; redirects are not followed with a key. "
                f"Set providers.{self._provider.name}.base_url to the right address.",
                status=response.status,
            )
        retry_after = response.headers.get("retry-after")
        milliseconds = response.headers.get("retry-after-ms", "")
        if milliseconds.isdecimal():
            retry_after = str(float(milliseconds) / 1000)
        return self._without_secrets(self._codec.parse_error(response.status, body[:MAX_ERROR_BYTES], retry_after))

    async def _read_whole(self, response: TransportResponse, watchdog: Watchdog) -> bytes:
        pieces: list[bytes] = []
        size = 0
        watchdog.allow(self._settings.stall_seconds, self._silence)
        try:
            while data := await response.read():
                pieces.append(data)
                size += len(data)
                watchdog.heard_at = asyncio.get_running_loop().time()
                if size > self._max_response_bytes:
                    raise ProtocolError(f"{self._who} sent an answer of more than {self._max_response_bytes} bytes.")
        except TransportError as error:
            raise self._lost(error) from error
        return b"".join(pieces)

    def _parse_answer(self, body: bytes, call: ModelCall) -> list[Delta]:
        try:
            return with_model(self._codec.parse_answer(body, call), self._name(call))
        except UpstreamError as error:
            raise self._refused(error) from None

    def _refused(self, error: UpstreamError) -> UpstreamError:
        """An error that came inside a 2xx response."""
        if isinstance(error, ProviderRefusedError):
            error.in_stream = True
        return self._without_secrets(error)

    def _without_secrets(self, error: _E) -> _E:
        error.rephrase(self._redactor.redact)
        return error

    def _lost(self, error: BaseException) -> UpstreamError:
        """Why a connection failed, in a sentence without addresses that could hold a secret."""
        match error:
            case UpstreamError():
                return error
            case NotConnectedError():
                return TransportLostError(self._why_not_connected(error.__cause__))
            case ResponseCutError():
                return TransportLostError(f"The connection to {self._who} was lost in the middle of the answer.")
            case NoResponseError():
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

    def _part(self, response: TransportResponse, *, whole: bool) -> None:
        """Back to the pool if the answer is whole and its body ends soon, else cut (U17)."""
        if whole:
            response.release()
        else:
            response.cut()


def _is_long(call: ModelCall) -> bool:
    if is_many(call.messages) or is_many(call.tools):
        return True
    return are_many(said.parts for said in call.messages if isinstance(said, UserMessage | AssistantMessage))


def _content_type(response: TransportResponse) -> str:
    """Without its parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _host_of(url: str) -> str:
    """Without a name and a password, which a URL may have."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _is_sendable(text: str) -> bool:
    """May it stand in a header? A line break would begin another one."""
    return all(character <= "\xff" and character not in "\r\n\0" for character in text)
