"""The run that an agent of one's own is given (A3): what it was asked, and how it says what it does.

Public, as `holdfast.Run`. Sits on the writer and the agents' port.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, TypedDict

import msgspec

from holdfast.agents.own.asking import Asking
from holdfast.agents.own.writer import RunWriter
from holdfast.agents.port import RunHandle
from holdfast.agents.request import RunRequest
from holdfast.clock import Clock
from holdfast.errors import GuestError, ToolError
from holdfast.guests.blame import blame
from holdfast.ids import CallId, RunId, SessionId, make_call_id
from holdfast.messages import AssistantMessage, Image, Message, Text, Usage, UserMessage
from holdfast.upstream.port import Options

_NOTHING: Final = "Done."
_MOST_TOKENS: Final = 10**12
"""No run uses so many: what is over it is another number, or a mistake, and sums of many must stay numbers."""


class ChatMessage(TypedDict):
    """A message of the conversation, as OpenAI's chat completions have it; SDKs take it as it is."""

    role: Literal["system", "user", "assistant"]
    content: str | list[dict[str, Any]]


class Run:
    """One execution of an agent on one input."""

    def __init__(
        self,
        request: RunRequest,
        history: Sequence[Message],
        handle: RunHandle,
        writer: RunWriter,
        clock: Clock,
        *,
        agent: str,
        attempt: int,
        asker: Asking,
    ) -> None:
        """Made by the server, one for each run."""
        self.id: RunId = request.run
        self.session_id: SessionId = request.session
        self.agent = agent
        """The name that it was asked for by."""
        self.instructions = request.instructions
        """The system layer of this request."""
        self.options: Options = request.options
        """How the request wants to be answered: temperature, max_output_tokens …; None where it does not say."""
        self.metadata: Mapping[str, str] = request.metadata
        self.attempt = attempt
        """1; or more, where it is run again after its server was gone (`on_restart = "resume"`)."""
        self.history: Sequence[Message] = history
        """The conversation with all that is known of it: calls, results, reasoning. `messages` is the simple form."""
        self._handle = handle
        self._writer = writer
        self._clock = clock
        self._asker = asker

    @property
    def input(self) -> str:
        """The newest user message's text."""
        return next((message.text for message in reversed(self.history) if isinstance(message, UserMessage)), "")

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation, oldest first, the input last; what the request sets as instructions is first."""
        said: list[ChatMessage] = []
        if self.instructions:
            said.append({"role": "system", "content": self.instructions})
        for message in self.history:
            match message:
                case UserMessage():
                    said.append({"role": "user", "content": _content(message)})
                case AssistantMessage() if message.text:
                    said.append({"role": "assistant", "content": message.text})
                case _:
                    continue
        return said

    async def text(self, text: str) -> None:
        """Say something, as `yield` does."""
        if not isinstance(text, str):
            raise GuestError(f"An agent says text, and this is of type {type(text).__name__}.")
        if not self._writer.say(text):
            await self._handle.drain()

    async def reasoning(self, text: str) -> None:
        """Think aloud: shown apart from the answer, and no part of it."""
        if not isinstance(text, str):
            raise GuestError(f"An agent thinks in text, and this is of type {type(text).__name__}.")
        if not self._writer.think(text):
            await self._handle.drain()

    def tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> "ToolUse":
        """A piece of work that clients are shown: `async with run.tool("search", {"query": q}) as call: …`."""
        return ToolUse(self._handle, self._writer, self._clock, name, arguments)

    async def approve(self, name: str, arguments: Mapping[str, Any] | None = None) -> bool:
        """Ask whoever follows the run whether something may be done (R12); False: no, or there is nobody to ask."""
        return await self._asker.ask(_named(name), _encode_arguments(arguments))

    def steering(self) -> list[str]:
        """What was said to the run since the last look (R13)."""
        said = self._handle.take_messages()
        if said:
            self.history = (*self.history, *said)
            self._writer.begin_turn()
        return [message.text for message in said]

    def usage(self, *, input: int = 0, output: int = 0, cached: int = 0, reasoning: int = 0) -> None:
        """Tokens that were used, beside what was said before."""
        for count in (input, output, cached, reasoning):
            if type(count) is not int or not 0 <= count <= _MOST_TOKENS:
                what = count if type(count) is int else f"of type {type(count).__name__}"
                raise GuestError(f"Tokens are counted in whole numbers from 0 on, and this is {what}.")
        self._writer.use(
            Usage(input_tokens=input, output_tokens=output, cached_tokens=cached, reasoning_tokens=reasoning)
        )


class ToolUse:
    """A piece of work of an agent, from its beginning to its end. Its `output` is what it came to."""

    def __init__(
        self,
        handle: RunHandle,
        writer: RunWriter,
        clock: Clock,
        name: str,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        self.id: CallId = make_call_id()
        self.name = _named(name)
        self.arguments = dict(arguments or {})
        self.output: Any = _NOTHING
        """Text, or what has a JSON form."""
        self.failed = False
        self._handle = handle
        self._writer = writer
        self._clock = clock
        self._began = 0.0

    async def __aenter__(self) -> "ToolUse":
        shown = [str(value) for value in self.arguments.values() if isinstance(value, str | int | float)]
        encoded = _encode_arguments(self.arguments)
        self._writer.start_tool(self.id, self.name, encoded, " ".join([self.name, *shown]))
        # Whatever it does, after a crash the log knows that it was begun (R8).
        await self._handle.drain()
        self._began = self._clock.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = round(self._clock.monotonic() - self._began, 6)
        if isinstance(error, ToolError):
            self._finish(error.message, True, seconds)
        elif isinstance(error, Exception):
            self._finish(f"{self.name} failed: {blame(error)}.", True, seconds)
        elif error is None:
            try:
                output = self.output if isinstance(self.output, str) else msgspec.json.encode(self.output).decode()
            except (TypeError, ValueError, RecursionError) as wrong:
                what = f"output of {self.name} is of type {type(self.output).__name__}, which is no text"
                self._finish(f"It was carried out, but the {what}.", True, seconds)
                raise GuestError(f"The {what} and has no JSON form.") from wrong
            self._finish(output, self.failed, seconds)
        # Else it was cancelled: whoever closes the run says that it is not known whether it was carried out.

    def _finish(self, output: str, failed: bool, seconds: float) -> None:
        self._writer.finish_tool(self.id, self.name, output, failed=failed, seconds=seconds)


def _named(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise GuestError("A tool has a name, which is text.")
    return str.__str__(name)


def _encode_arguments(arguments: Mapping[str, Any] | None) -> str:
    try:
        return msgspec.json.encode(dict(arguments or {})).decode()
    except (TypeError, ValueError, RecursionError):
        raise GuestError("The arguments of a tool have a JSON form, and these have none.") from None


def _content(message: UserMessage) -> str | list[dict[str, Any]]:
    if not any(isinstance(part, Image) for part in message.parts):
        return message.text
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text():
                parts.append({"type": "text", "text": part.text})
            case Image():
                detail = {"detail": part.detail} if part.detail else {}
                parts.append({"type": "image_url", "image_url": {"url": part.url, **detail}})
    return parts
