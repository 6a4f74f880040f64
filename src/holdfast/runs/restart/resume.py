"""Taking a run up again from its log, after its server was gone (R15, R16).

Nothing here knows what the dead process knew: the request was kept with the run (`continuation`), everything else is a
fold of the log. What was cut off is closed with the same words as at a run's end, and the run goes on with the next
number. Pure but for reading the log. Above: the supervisor. Below: the transcript and the store's port.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.agents.cuts import cut_turn
from holdfast.agents.request import RunRequest
from holdfast.agents.resume_point import ResumePoint
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ArgumentsAdded,
    Batch,
    CutOff,
    Event,
    ReasoningAdded,
    RunHandedOver,
    RunResumed,
    RunStarted,
    TextAdded,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    TurnStarted,
)
from holdfast.ids import CallId
from holdfast.messages import AssistantMessage
from holdfast.owners import bare_name
from holdfast.runs.log.reading import fold_log
from holdfast.runs.log.transcript import Transcript
from holdfast.store.port import RunLog
from holdfast.store.records import RunRecord

MAX_IDLE_ATTEMPTS: Final = 3
"""A run that has been begun so often in a row and never got any further may be what kills the server."""
COMPARED_CHARACTERS: Final = 1_000
"""So much of what an attempt said is compared with what the one before it said."""

LOST_RESULT: Final = "The server was gone while this tool was running: it is not known whether it was carried out."

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunRequest).decode
_decode_json = msgspec.json.Decoder(RunRequest).decode


def continuation_of(request: RunRequest) -> bytes:
    """What has to be kept of a request beside its record; empty: the run ends with its server."""
    if request.on_restart != "resume":
        return b""
    kept = msgspec.structs.replace(request, input=(), metadata={}, echo={})
    try:
        return _encode(kept)
    except OverflowError:  # a number of more than 64 bits, in a schema or an option: JSON has room for it
        return msgspec.json.encode(kept)


def request_of(record: RunRecord) -> RunRequest | None:
    """The request that a run was started with; None: it was not kept, or cannot be read."""
    if not record.continuation or record.unreadable:
        return None
    try:
        # No MessagePack of a struct begins like an object of JSON.
        is_json = record.continuation.startswith(b"{")
        kept = _decode_json(record.continuation) if is_json else _decode(record.continuation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.structs.replace(kept, input=record.input, metadata=record.metadata, echo=record.echo)


class LogSoFar:
    """What a log says of a run that has not ended, for whoever goes on with it. A `LogFold`."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.decisions: dict[CallId, ApprovalAnswered] = {}
        self.ready: set[CallId] = set()
        self.output_bytes = 0
        self.has_answered = False
        self.was_cut = False
        """The last turn goes on from an answer that broke off."""
        self.is_handed_over = False
        """Its server let go of it in order."""
        self.used_seconds = 0.0
        """How long it was being executed, in all attempts."""
        self.last_at: float | None = None
        """When it last said or did something."""
        self._since: float | None = None
        self._attempt = _Attempt()
        self._words_before = ""
        self._idle_attempts = 0

    @property
    def idle_attempts(self) -> int:
        """How many attempts in a row have brought nothing, the last one included."""
        return self._attempts_after(was_in_tool=bool(self.transcript.calls.running()))

    def _attempts_after(self, *, was_in_tool: bool) -> int:
        attempt = self._attempt
        if self.is_handed_over or not self.transcript.turns or self.transcript.calls.approvals:
            # Whoever was let go of, or waited, for its turn or for a person, is not what ended the server.
            return self._idle_attempts
        # What a model says before a tool that never returns is no step forward: it can be said each time. Nor are words
        # that the attempt before has said already. Thoughts and half calls are asked for again, and bring nothing.
        has_said = attempt.has_answered or attempt.says_more_than(self._words_before)
        has_progress = attempt.has_finished or (has_said and not was_in_tool)
        return 0 if has_progress else self._idle_attempts + 1

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        self.last_at = batch.at
        if self._since is not None:
            # What the next server said first it said when it was there again: the time until then is nobody's.
            if not any(isinstance(event, RunResumed) for event in batch.events):
                self.used_seconds += max(0.0, batch.at - self._since)
            self._since = batch.at
        for event in batch.events:
            self._add(event, batch.at)
            self.transcript.add(event, batch.at)
        # Where what is stored cannot be read, numbers are missing.
        self.transcript.events = batch.end

    def _add(self, event: Event, at: float) -> None:
        match event:
            case TextAdded() | ReasoningAdded() | ArgumentsAdded():
                self.output_bytes += len(event.text.encode("utf-8", "surrogatepass"))
                if isinstance(event, TextAdded):
                    self._attempt.say(event.text)
            case ToolCallDropped():
                self._attempt.is_over = True
            case TurnStarted():
                self._since = self._since or at
                is_answer = isinstance((None, *self.transcript.closed_messages)[-1], AssistantMessage)
                self.was_cut = self.transcript.is_cut and (self.was_cut or is_answer)
            case Answered():
                self.has_answered = self._attempt.has_answered = True
            case ToolFinished(executed="yes"):
                self._attempt.has_finished = True
            case ApprovalAnswered():
                self.decisions[event.call_id] = event
            case ToolCallReady():
                self.ready.add(event.call_id)
            case RunHandedOver():
                self.is_handed_over = True
            case RunResumed():
                # Whose turn had come goes on at once; the others wait for theirs.
                self._since = at if self.transcript.turns else None
                self._idle_attempts = self._attempts_after(was_in_tool=event.cut == "tool")
                self._words_before = self._attempt.words or self._words_before
                self._attempt = _Attempt()
                self.is_handed_over = False
            case _:
                pass


@dataclass(slots=True)
class _Attempt:
    """What one server has done of a run."""

    words: str = ""
    """What the model said, or the beginning of it."""
    is_over: bool = False
    """What follows is ours: the warning of a call that was dropped."""
    has_answered: bool = False
    """The model has ended a turn."""
    has_finished: bool = False
    """A tool has come to its end."""

    def say(self, text: str) -> None:
        """The model said something."""
        if not self.is_over and len(self.words) < COMPARED_CHARACTERS:
            self.words += text[: COMPARED_CHARACTERS - len(self.words)]

    def says_more_than(self, before: str) -> bool:
        """Has it said anything but what was said before, from its beginning on?"""
        is_again = bool(before) and (before.startswith(self.words) or self.words.startswith(before))
        return bool(self.words) and not is_again


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a run goes on."""

    transcript: Transcript
    """Of what its log has so far."""
    opening: tuple[Event, ...]
    """What its log says next: what was cut off, and that it goes on."""
    point: ResumePoint
    used_seconds: float


async def read_so_far(log: RunLog, record: RunRecord) -> LogSoFar:
    """Fold the log of a run that has not ended.

    Raises:
        StoreUnavailableError: it cannot be read now.
    """
    return await fold_log(log, record.id, LogSoFar())


def resume(request: RunRequest, log: LogSoFar, now: float) -> Resumption:
    """How a run goes on from its log.

    Args:
        request: what it was asked.
        log: what it has said and done.
        now: Unix time.
    """
    transcript = log.transcript
    whole = transcript.copy()
    closing: list[Event] = []
    turn = transcript.turn
    cut: CutOff | None = None
    if turn is not None and turn.answered is None:
        cut = _cut_off(turn.has_text, bool(turn.calls), bool(turn.message().parts))
        closing += cut_turn(transcript.turns - 1, turn, "the server was gone", "Server stopped", goes_on=True)
    again = [tool.call_id for tool in transcript.calls.running() if tool.repeatable]
    for tool in transcript.calls.running():
        cut = "tool"
        if not tool.repeatable:
            closing.append(
                ToolFinished(call_id=tool.call_id, name=tool.name, output=LOST_RESULT, failed=True, executed="unknown")
            )
    opening: list[Event] = [*closing]
    if not transcript.events:
        opening.append(RunStarted(run=request.run, session=bare_name(request.session), model=request.model))
    opening.append(
        RunResumed(
            attempt=transcript.attempts + 1,
            reason="handed_over" if log.is_handed_over else "server_restart",
            cut=cut,
            repeated=tuple(again),
        )
    )
    whole.extend(closing, now)
    return Resumption(
        transcript, tuple(opening), _point(log, whole, frozenset(again), now), used_seconds=log.used_seconds
    )


def _point(log: LogSoFar, whole: Transcript, begun: frozenset[CallId], now: float) -> ResumePoint:
    """Where the loop goes on, given the log with all that was cut off closed."""
    everything = whole.messages()
    said = list(everything[: len(everything) - len(whole.steering)])
    calls: AssistantMessage | None = None
    turn = whole.turn
    if turn is not None:
        # Nothing was done about it yet, and the loop puts it in its place.
        said = list(whole.closed_messages)
    elif whole.pending_calls():
        calls = next(m for m in reversed(said) if isinstance(m, AssistantMessage) and m.tool_calls)
    return ResumePoint(
        said=said,
        is_cut=whole.is_cut,
        was_cut=log.was_cut,
        turn=turn,
        is_dropped=turn is not None and not whole.half_calls,
        calls=calls,
        finished=frozenset(whole.calls.results),
        begun=begun,
        decisions=log.decisions,
        waiting={asked.call_id: max(0.0, asked.expires_at - now) for asked in whole.calls.approvals.values()},
        ready=frozenset(log.ready),
        attempt=log.transcript.attempts + 1,
        # A turn that broke off is asked for again under its own number: limits count what was answered.
        turns=whole.turns - (1 if whole.is_cut else 0),
        tool_calls=len({tool.call_id for tool in whole.calls.tools} | set(whole.calls.results)),
        output_bytes=log.output_bytes,
        has_text=bool(whole.text),
        has_answered=log.has_answered,
    )


def _cut_off(has_text: bool, has_calls: bool, has_parts: bool) -> CutOff:
    if has_calls:
        return "tool_call"
    return "text" if has_text else "reasoning" if has_parts else "request"
