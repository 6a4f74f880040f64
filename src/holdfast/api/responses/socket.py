"""The WebSocket on /v1/responses: one connection, many turns, the same events as the stream of POST.

Each `response.create` is answered in the order it came. A response that is not stored can still be continued on its
own connection, which remembers the last one. Errors are events; the connection stays. Sits on the service.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.agents.request import RunRequest
from holdfast.api.callers import ROOM
from holdfast.api.items.echo import parse_echo
from holdfast.api.items.input import check_calls
from holdfast.api.problems import Problem, problem_of
from holdfast.api.requests.body import parse_body
from holdfast.api.requests.targets import find_target
from holdfast.api.responses.chain import Position, join_texts
from holdfast.api.responses.create import build_run_request, find_warning, make_request, read_input
from holdfast.api.responses.encode import ResponseEncoder
from holdfast.api.responses.lookup import make_envelope
from holdfast.api.responses.response_object import Envelope
from holdfast.api.responses.schema import Wanted, parse_create
from holdfast.api.service import Service, service_of
from holdfast.api.streams.buffered import WebSocketBody
from holdfast.api.streams.pushed import PushedStream
from holdfast.aside import is_many, run_aside
from holdfast.errors import HoldfastError, LimitReachedError, RequestError
from holdfast.events import Batch
from holdfast.ids import CallId, make_session_id, response_id
from holdfast.messages import AssistantMessage, Message
from holdfast.runs.history import shown_of
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.start import Started
from holdfast.store.room import StoreRoom

CONNECTION_SECONDS: Final = 3600.0
"""As the specification says: after an hour a client connects anew."""
MAX_WAITING: Final = 16
"""How many turns may wait for the one that is going on."""
NOT_HERE: Final = ("stream", "stream_options", "background")
"""Fields of POST that mean nothing on a socket, where all is streamed. Codex asks for its `stream` all the same."""


class UnstoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The last response that was not stored: this connection alone can continue from it."""

    id: str
    messages: tuple[Message, ...]
    instructions: str | None
    system: str
    brought_tools: tuple[dict[str, Any], ...]


async def serve_socket(websocket: WebSocket) -> None:
    """Take turns until the client leaves or the connection is too old."""
    await websocket.accept()
    await ResponsesSocket(service_of(websocket), websocket).serve()


class ResponsesSocket:
    """One client's socket."""

    def __init__(self, service: Service, websocket: WebSocket) -> None:
        self._service = service
        self._websocket = websocket
        self._room: StoreRoom | None = websocket.scope.get(ROOM)
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        self._remembered: UnstoredResponse | None = None

    async def serve(self) -> None:
        """Read in one task and answer in another, so that a client's leaving is noticed in the middle of a turn."""
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(self._work(), name="responses socket")
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    worker.cancel()
                    return
                text = message.get("text")
                await self._take(text.encode() if text is not None else message.get("bytes") or b"")

    async def _take(self, data: bytes) -> None:
        """Let a turn wait for those before it: so many, and together no larger than one may be."""
        most_bytes = self._service.settings.server.max_body_bytes
        waiting = self._waiting.qsize()
        if waiting >= MAX_WAITING or (waiting and self._waiting_bytes + len(data) > most_bytes):
            full = f"{waiting} turns of {self._waiting_bytes:,} bytes wait on this connection."
            await self._send_problem(problem_of(LimitReachedError(full, limit="waiting_turns")))
        else:
            self._waiting_bytes += len(data)
            self._waiting.put_nowait(data)

    async def _work(self) -> None:
        until = asyncio.get_running_loop().time() + CONNECTION_SECONDS
        try:
            while True:
                try:
                    async with asyncio.timeout_at(until):
                        data = await self._waiting.get()
                except TimeoutError:
                    await self._send_problem(_TOO_OLD)
                    await self._websocket.close(1000, "connection limit reached")
                    return
                self._waiting_bytes -= len(data)
                await self._turn(data)
        except WebSocketDisconnect:
            # Whoever reads is about to be told, too.
            return

    async def _turn(self, data: bytes) -> None:
        previous: str | None = None
        try:
            wanted = await _parse_turn(data, self._service.settings.server.max_body_bytes)
            previous = wanted.body.previous_response_id
            async with nullcontext() if self._room is None else self._room.taken_by(len(data)):
                await self._answer(wanted)
        except HoldfastError as error:
            if self._remembered is not None and self._remembered.id == previous:
                # A continuation that failed may not be tried again from a state that nobody can look at.
                self._remembered = None
            await self._send_problem(problem_of(error))

    async def _answer(self, wanted: Wanted) -> None:
        request = await self._make_request(wanted)
        started = await self._start(request)
        transcript = Transcript()
        body = WebSocketBody(self._websocket)
        async with started.subscription as subscription:
            envelope = make_envelope(self._service, started.record)
            encoder = _FoldingEncoder(envelope, self._service.clock.now, transcript)
            if (warning := find_warning(self._service, wanted, request)) is not None:
                # A stream has a header for it.
                encoder.fold.warnings.append(warning)
            if wanted.is_stored:
                await self._service.store.evict_responses(self._service.settings.store.max_responses)
            keepalive_seconds = self._service.settings.server.keepalive_seconds
            PushedStream(subscription, encoder, body, keepalive_seconds=keepalive_seconds).start()
            await body.deliver()
        if not wanted.is_stored:
            self._remember(request, transcript)

    async def _start(self, request: RunRequest) -> Started:
        """Begin a run; if the client leaves while it is being saved, let it begin, so that it ends in order."""
        starting = asyncio.get_running_loop().create_task(self._service.supervisor.start(request), name=request.run)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:
                starting.result().subscription.leave()
            raise

    async def _make_request(self, wanted: Wanted) -> RunRequest:
        remembered = self._remembered
        followed = None if wanted.body.conversation_history else wanted.body.previous_response_id
        if remembered is None or remembered.id != followed:
            return await make_request(self._service, self._websocket, wanted)
        parsed = await read_input(self._service, wanted.body.input)
        is_much = is_many(parsed.messages) or is_many(remembered.messages)
        await run_aside(is_much, check_calls, parsed.messages, _calls(remembered.messages))
        position = Position(
            session=make_session_id(),
            instructions=remembered.instructions,
            carried=remembered.system,
            brought_tools=remembered.brought_tools,
            previous_response=remembered.id,
        )
        target = await find_target(self._service, wanted.body.model, None)
        request = build_run_request(self._service, self._websocket, wanted, parsed, position, target)
        if not request.ephemeral:
            # It is to be stored, and what it follows is not: so it brings that along.
            brought = shown_of(request, (*remembered.messages, *request.input))
            return msgspec.structs.replace(request, input=tuple(brought))
        return msgspec.structs.replace(request, history=remembered.messages)

    def _remember(self, request: RunRequest, transcript: Transcript) -> None:
        echo = parse_echo(request.echo)
        self._remembered = UnstoredResponse(
            id=response_id(request.run),
            messages=(*request.history, *request.input, *transcript.messages()),
            instructions=echo.instructions,
            system=join_texts(echo.carried_system, echo.system),
            brought_tools=echo.brought_tools,
        )

    async def _send_problem(self, problem: Problem) -> None:
        event = {"type": "error", "status": problem.status, "error": problem.envelope["error"]}
        await self._websocket.send({"type": "websocket.send", "text": msgspec.json.encode(event).decode()})


class _FoldingEncoder(ResponseEncoder):
    """Keeps what a response says beside writing it: one that is not stored can be continued from here alone."""

    def __init__(self, envelope: Envelope, now: Callable[[], float], transcript: Transcript) -> None:
        super().__init__(envelope, now, sse=False)
        self._transcript = transcript

    def encode(self, batches: list[Batch]) -> bytes:
        for batch in batches:
            self._transcript.add_batch(batch)
        return super().encode(batches)


async def _parse_turn(data: bytes, max_bytes: int) -> Wanted:
    if len(data) > max_bytes:
        raise RequestError(
            f"The message is over the limit of {max_bytes} bytes (server.max_body_bytes).",
            status=413,
            code="body_too_large",
        )
    return (await parse_body(data, _parse_event))[1]


def _parse_event(raw: dict[str, Any]) -> Wanted:
    kind = raw.pop("type", None)
    if kind != "response.create":
        raise RequestError(
            f"Messages of type {str(kind)[:100]!r} are not understood; send response.create.",
            param="type",
            code="unknown_event_type",
        )
    for name in NOT_HERE:
        if raw.get(name) is not None and (name, raw[name]) != ("stream", True):
            raise RequestError(f"{name} has no meaning on a WebSocket.", param=name, code="unsupported_parameter")
    if raw.get("generate") is False:
        raise RequestError(
            "generate: false is not supported: there is nothing to warm up.",
            param="generate",
            code="unsupported_parameter",
        )
    return parse_create({**raw, "stream": True})


def _calls(messages: Sequence[Message]) -> frozenset[CallId]:
    said = (message for message in messages if isinstance(message, AssistantMessage))
    return frozenset(call.id for message in said for call in message.tool_calls)


_TOO_OLD: Final = Problem(
    status=400,
    message="This connection is an hour old; open a new one.",
    code="websocket_connection_limit_reached",
)
