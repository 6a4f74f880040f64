"""Every error Holdfast raises.

HoldfastError
  ConfigError             a setting is wrong; names it
    UntrustedError        settings that were only found need to be looked at first (S16)
  ListenError             the server's address cannot be listened on
  RequestError            a client asked for something it cannot have; knows its HTTP answer
    NotFoundError         there is no such run, session, response …
    LimitReachedError     a limit of the server is reached; says when to try again
    StoreFullError        the store has no room for it (S18)
    SessionBusyError      the session has a run, and the client asked to be turned away (R11)
    HandedOverError       the run goes on at the server's next start, or on another one (R16)
    KeyConflictError      an idempotency key came with another body (C15)
  UpstreamError           the model's side failed
    TransportLostError    the connection failed, stalled or ended early; may be tried again only before the first delta
      StreamStalledError  nothing came for too long (U14)
      ProtocolError       what came is not the protocol's stream (U11)
    ProviderRefusedError  the provider answered, and the answer is no
    StreamingUnsupportedError  the provider cannot stream this model (U10)
  StoreError              the store's side failed
    StoreUnavailableError it cannot be read or written now: full, locked, broken
      FencedError         others have this server's runs, because it was away for too long (R17)
    LogConflictError      somebody has already written there: a run is ended only once (R6)
  ToolError               a tool could not do what it was asked; the message is for the model
  IncompleteError         an agent of one's own has an answer that is not whole (`holdfast.Incomplete`)
  GuestError              an agent or a tool of one's own did what cannot be served; the words are ours, and are told
    BlockedError          it held up the event loop
  RunOverError            an agent of one's own says something to a run that is over
  ClientError             a Holdfast server, seen from its client, did not do what it was asked
    ServerUnreachableError  it cannot be connected to, or the connection was lost
    ServerRefusedError    it answered, and the answer is no

Vocabulary: imports nothing of ours.
"""

from collections.abc import Callable
from typing import ClassVar


class HoldfastError(Exception):
    """Base of all errors below."""

    def __init__(self, message: str = "") -> None:
        # Tools and agents of one's own raise these with whatever they have at hand: an exception, a template's text.
        said = str(message).encode("utf-8", "replace").decode()
        self.message = said or (type(self).__doc__ or "").strip().split("\n", maxsplit=1)[0]
        super().__init__(self.message)


class ConfigError(HoldfastError):
    """A setting is wrong."""

    exit_code: ClassVar[int] = 2


class UntrustedError(ConfigError):
    """Settings that were found here are not trusted."""


class ListenError(HoldfastError):
    """The address cannot be listened on."""


class RequestError(HoldfastError):
    """The request cannot be served."""

    status: int = 400
    code: str | None = None
    type: str = "invalid_request_error"

    def __init__(
        self, message: str = "", *, param: str | None = None, code: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class NotFoundError(RequestError):
    """There is no such thing."""

    status = 404
    code = "not_found"


class LimitReachedError(RequestError):
    """The server is at a limit; try again later."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"

    def __init__(self, message: str = "", *, limit: str, retry_after_seconds: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds


class StoreFullError(RequestError):
    """The store is full."""

    status = 507
    code = "store_full"


class SessionBusyError(RequestError):
    """The session already has a run."""

    status = 409
    code = "session_busy"


class HandedOverError(RequestError):
    """The run goes on when the server is back."""

    status = 503
    code = "handed_over"


class KeyConflictError(RequestError):
    """This Idempotency-Key was used with another request."""

    status = 409
    code = "idempotency_key_conflict"


class UpstreamError(HoldfastError):
    """The model's side failed."""

    def rephrase(self, told: Callable[[str], str]) -> None:
        """Say it in other words: what a provider said may hold what must not be repeated."""
        self.message = told(self.message)
        self.args = (self.message,)


class TransportLostError(UpstreamError):
    """The connection to the model was lost."""


class StreamStalledError(TransportLostError):
    """The model sent nothing for too long."""


class ProtocolError(TransportLostError):
    """The model's stream is not what its protocol says."""


class ProviderRefusedError(UpstreamError):
    """The provider answered with an error."""

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        self.in_stream = False
        """It came inside an answer that had begun with 200: final at once, whatever its status (U9)."""

    def rephrase(self, told: Callable[[str], str]) -> None:
        """Its code too."""
        super().rephrase(told)
        self.code = None if self.code is None else told(self.code)


class StreamingUnsupportedError(UpstreamError):
    """The provider cannot stream this model."""


class StoreError(HoldfastError):
    """The store failed."""

    @property
    def condition(self) -> str:
        """What is wrong without where: the words before the first colon, which name no path (S1)."""
        return self.message.partition(":")[0]


class StoreUnavailableError(StoreError):
    """The store cannot be read or written now."""


class FencedError(StoreUnavailableError):
    """This server was away for too long, and others have its runs."""


class LogConflictError(StoreError):
    """This run has already ended."""


class ToolError(HoldfastError):
    """The tool could not do it."""


class IncompleteError(HoldfastError):
    """The answer is not whole: raised by an agent of one's own, which says why (R2)."""

    REASONS: ClassVar = ("max_output_tokens", "content_filter", "max_turns", "max_tool_calls", "stream_interrupted")

    def __init__(self, reason: str = "stream_interrupted", message: str = "") -> None:
        if reason not in self.REASONS:
            raise GuestError(f"An answer can be incomplete for one of these reasons: {', '.join(self.REASONS)}.")
        super().__init__(message or f"The answer is not whole: {reason}.")
        self.reason = reason
        self.told = self.message if message else ""


class GuestError(HoldfastError):
    """An agent or a tool of one's own did what cannot be served. Its words are ours: they hold no secret."""


class BlockedError(GuestError):
    """It held up the server for too long."""


class RunOverError(HoldfastError):
    """The run is over, and nothing more can be said in it."""


class ClientError(HoldfastError):
    """The server did not do what it was asked."""


class ServerUnreachableError(ClientError):
    """The server cannot be reached."""


class ServerRefusedError(ClientError):
    """The server answered with an error."""

    def __init__(self, message: str = "", *, status: int, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
