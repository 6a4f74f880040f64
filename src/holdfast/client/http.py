"""The runs API over HTTP (J1, J2): start, follow, stop, approve and steer runs; sessions, models, health.

A lost connection is not a lost run: what can be asked again without harm is asked again, and a log is read on from
where it broke off (R7). Above: the terminal. Below: aiohttp and `sse`. Shows nothing to anybody.
"""

import asyncio
import errno
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from holdfast.client.values import (
    Entry,
    Health,
    Model,
    NewRun,
    Replicas,
    ServerRun,
    Session,
    SessionMessage,
    StartedRun,
    StoppedRun,
)
from holdfast.errors import ClientError, ServerRefusedError, ServerUnreachableError
from holdfast.events import Event, RunEnded, RunHandedOver
from holdfast.ids import BEFORE_FIRST, EventNumber
from holdfast.sse import SseDecoder, SseFrame
from holdfast.version import __version__

ANSWER_SECONDS: Final = 60.0
"""For a plain answer; a stop waits until what there was is saved."""
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 90.0
"""A stream says every 15 s that it lives (server.keepalive_seconds); one that does not is opened anew."""
PATIENCE_SECONDS: Final = 60.0
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Far above any event; a peer that never ends one must not fill our memory."""
_TRIES: Final = 3
_FIRST_WAIT_SECONDS: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 3.0
_PASSING: Final = frozenset({502, 503, 504})
"""A server that starts or stops, or the proxy before it, says one of these: no reason to give up."""

T = TypeVar("T")
_decode_event = msgspec.json.Decoder(Event).decode


class _Stamp(msgspec.Struct):
    at: float = 0.0


class _Said(msgspec.Struct):
    message: str
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Said


class _ListBody(msgspec.Struct):
    data: msgspec.Raw


class _Nothing(msgspec.Struct):
    """An answer that says no more than yes."""


_decode_stamp = msgspec.json.Decoder(_Stamp).decode


class HoldfastClient:
    """One server. Use it as a context manager."""

    def __init__(self, base_url: str, api_key: str = "", *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"User-Agent": f"holdfast/{__version__}", "X-Holdfast-Dialect": "holdfast"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._headers = headers
        self._max_event_bytes = max_event_bytes
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No proxies and no .netrc: the key goes to the server that was named and to nobody else.
        self._session = aiohttp.ClientSession(
            headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    # Runs

    async def start_run(self, new: NewRun) -> StartedRun:
        """Start a run that goes on by itself. A try whose answer was lost is repeated and starts nothing twice (J3)."""
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        return await self._persist(lambda: self._ask("POST", "/v1/runs", StartedRun, body=new, headers=headers))

    async def events(
        self,
        run: str,
        after: EventNumber = BEFORE_FIRST,
        *,
        patience_seconds: float | None = PATIENCE_SECONDS,
        on_lost: Callable[[str], None] | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """A run's log after an event, live to its end; over lost connections and restarts, nothing twice.

        Args:
            run: which run.
            after: the last event that is known already.
            patience_seconds: how long a server may be away; None: for ever.
            on_lost: told once for each time that the server goes away.

        Raises:
            ServerRefusedError: there is no such run, or the key is wrong.
            ServerUnreachableError: the server was away for too long.
        """
        clock = asyncio.get_running_loop().time
        last, tries, lost_at = after, 0, 0.0
        while True:
            is_handed_over = False
            try:
                async with aclosing(self._read_log(run, last)) as entries:
                    async for entry in entries:
                        tries = 0
                        if entry.number > last:
                            last = entry.number
                            yield entry
                        if isinstance(entry.event, RunEnded):
                            return
                        is_handed_over = isinstance(entry.event, RunHandedOver)
                what = "is going down" if is_handed_over else "ended the stream early"
                problem: ClientError = ServerUnreachableError(f"{self.base_url} {what}.")
            except (ServerUnreachableError, ServerRefusedError) as error:
                if not is_passing(error):
                    raise
                problem = error
            if tries == 0:
                lost_at = clock()
                if on_lost is not None:
                    on_lost(problem.message)
            elif patience_seconds is not None and clock() - lost_at > patience_seconds:
                raise ServerUnreachableError(
                    f"{problem.message.rstrip('. ')}. It was tried for {patience_seconds:g} s; "
                    f"run {run} may still go on there."
                ) from problem
            await asyncio.sleep(wait_seconds(tries))
            tries += 1

    async def _read_log(self, run: str, after: EventNumber) -> AsyncGenerator[Entry, None]:
        headers = {"Accept": "text/event-stream"}
        if after != BEFORE_FIRST:
            headers["Last-Event-ID"] = str(after)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        decoder = SseDecoder(self._max_event_bytes)
        async with self._open("GET", f"/v1/runs/{_segment(run)}/events", headers=headers, timeout=timeout) as response:
            async for data in response.content.iter_any():
                for frame in decoder.feed(data):
                    if (entry := _parse_entry(frame)) is not None:
                        yield entry
                if decoder.overflowed:
                    raise ClientError("The server sent an event that is too large to be one.")

    async def stop(self, run: str) -> StoppedRun:
        """End a run at once; answers with what was kept."""
        return await self._persist(lambda: self._ask("POST", f"/v1/runs/{_segment(run)}/stop", StoppedRun))

    async def answer_approval(self, run: str, call_id: str, approved: bool) -> None:
        """Approve or deny a call that waits."""
        body = {"approved": approved, "call_id": call_id}
        await self._ask("POST", f"/v1/runs/{_segment(run)}/approval", _Nothing, body=body)

    async def deny_unasked(self, run: str, call_id: str) -> None:
        """Deny a call that waits, because there is nobody here who could be asked."""
        body = {"approved": False, "call_id": call_id, "by": "nobody"}
        await self._ask("POST", f"/v1/runs/{_segment(run)}/approval", _Nothing, body=body)

    async def steer(self, run: str, content: str) -> None:
        """Say something to a running run; the model hears it before its next turn."""
        await self._ask("POST", f"/v1/runs/{_segment(run)}/messages", _Nothing, body={"content": content})

    async def get_run(self, run: str) -> ServerRun:
        """One run, with its input and tools."""
        return await self._ask("GET", f"/v1/runs/{_segment(run)}", ServerRun)

    async def list_runs(
        self, *, status: str | None = None, session: str | None = None, limit: int = 50, before: str | None = None
    ) -> list[ServerRun]:
        """Runs, newest first."""
        query = {"status": status, "session_id": session, "limit": str(limit), "before": before}
        return await self._list("/v1/runs", ServerRun, query)

    # Sessions

    async def list_sessions(self, *, search: str | None = None, limit: int = 50) -> list[Session]:
        """Sessions, the last used first."""
        return await self._list("/v1/sessions", Session, {"search": search, "limit": str(limit)})

    async def get_session(self, session: str) -> Session:
        """One session."""
        return await self._ask("GET", f"/v1/sessions/{_segment(session)}", Session)

    async def messages(self, session: str) -> list[SessionMessage]:
        """A session's messages, the oldest first."""
        return await self._list(f"/v1/sessions/{_segment(session)}/messages", SessionMessage, {})

    async def fork_session(self, session: str, at: int) -> Session:
        """A copy of a session up to a message."""
        return await self._ask("POST", f"/v1/sessions/{_segment(session)}/fork", Session, body={"at": at})

    # The server

    async def models(self) -> list[Model]:
        """What may be asked for; the first is the agent."""
        return await self._list("/v1/models", Model, {})

    async def health(self, seconds: float = CONNECT_SECONDS) -> Health:
        """Is it up, and is it one of ours?"""
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._open("GET", "/health", timeout=timeout) as response:
            return self._parse(await response.read(), Health)

    async def replicas(self) -> Replicas:
        """The servers that share its store (R17)."""
        return await self._ask("GET", "/health/detailed", Replicas)

    # Keys, for an admin (S12-S14)

    async def add_key(self, key: dict[str, Any]) -> dict[str, Any]:
        """Make a key; the answer has it, this once."""
        return await self._ask("POST", "/v1/keys", dict[str, Any], body=key)

    async def list_keys(self) -> list[dict[str, Any]]:
        """All keys, without the keys themselves."""
        return await self._list("/v1/keys", dict[str, Any], {})

    async def revoke_key(self, name: str) -> None:
        """Revoke a key."""
        await self._ask("DELETE", f"/v1/keys/{_segment(name)}", dict[str, Any])

    async def usage(self, key: str | None = None) -> list[dict[str, Any]]:
        """What keys have used."""
        return await self._list("/v1/usage", dict[str, Any], {"key": key})

    async def audit(self, after: int) -> list[dict[str, Any]]:
        """Some of the audit log's lines, after one of them."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._open("GET", "/v1/audit", query={"after": str(after)}, timeout=timeout) as response:
            return [self._parse(line, dict[str, Any]) for line in (await response.read()).splitlines()]

    # HTTP

    async def _list(self, path: str, kind: type[T], query: Mapping[str, str | None]) -> list[T]:
        page = await self._ask("GET", path, _ListBody, query=query)
        return self._parse(page.data, list[kind])  # type: ignore[valid-type]

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        body: object = None,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        opened = self._open(method, path, body=body, query=query, headers=headers, timeout=timeout)
        async with opened as response:
            return self._parse(await response.read(), kind)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        body: object = None,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "HoldfastClient is a context manager"
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method,
                self.base_url + path,
                data=data,
                params={name: value for name, value in (query or {}).items() if value is not None},
                headers={**(headers or {}), **({"Content-Type": "application/json"} if data is not None else {})},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status >= 300:
                    raise _refusal(self.base_url, response.status, await response.read())
                yield response
        except TimeoutError as error:
            raise ServerUnreachableError(f"{self.base_url} does not answer.") from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
                raise ServerUnreachableError(
                    f"{self.base_url} cannot be reached (connection refused); `holdfast serve` starts a server."
                ) from error
            # Only the kind of failure: the text of some has the whole request in it.
            is_cut = isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | ConnectionError)
            kind = "the connection broke off" if is_cut else type(error).__name__
            raise ServerUnreachableError(f"{self.base_url} cannot be reached ({kind}).") from error

    def _parse(self, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ClientError(
                f"What {self.base_url} answers is not understood ({error}). Is it a Holdfast server of this version?"
            ) from error

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again what does no harm when it is done twice."""
        for tries in range(_TRIES - 1):
            try:
                return await call()
            except ServerUnreachableError:
                await asyncio.sleep(wait_seconds(tries))
        return await call()


def is_passing(error: ClientError) -> bool:
    """May the same be asked again, because the server is away, starts or stops?"""
    return isinstance(error, ServerUnreachableError) or (
        isinstance(error, ServerRefusedError) and error.status in _PASSING
    )


def _parse_entry(frame: SseFrame) -> Entry | None:
    """The frame's event; None for a kind of event that is newer than this client."""
    kind, data, number = frame
    if not number.isdecimal():
        # The server cannot read the log on: that end is no part of it, so the log is asked for again.
        raise ServerUnreachableError("The server cannot read the run's log now.")
    try:
        return Entry(EventNumber(int(number)), _decode_event(data), _decode_stamp(data).at)
    except msgspec.ValidationError as error:
        if kind == RunEnded.__struct_config__.tag:
            raise ClientError(f"The run has ended in a way that this client does not know ({error}).") from error
        return None
    except msgspec.DecodeError as error:
        raise ClientError(f"The server sent an event that is not JSON ({error}).") from error


def _refusal(base_url: str, status: int, body: bytes) -> ServerRefusedError:
    try:
        said = msgspec.json.decode(body, type=_Envelope).error
    except msgspec.DecodeError:
        # Not one of our servers, or a proxy before it.
        return ServerRefusedError(f"{base_url} answers with HTTP {status}.", status=status)
    advice = " Set HOLDFAST_API_KEY to the server's key." if status == 401 else ""
    return ServerRefusedError(
        (said.message.rstrip(". ") + "." + advice) if advice else said.message, status=status, code=said.code
    )


def _segment(text: str) -> str:
    return quote(text, safe="")


def wait_seconds(tries: int) -> float:
    """How long to wait after so many tries in vain: longer each time, and not all clients at once."""
    longest: float = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** min(tries, 10))
    return longest * random.uniform(0.5, 1.0)
