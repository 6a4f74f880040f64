"""Whom a request is for: its session, its memory, its agent and model (A2, C13, C14, C16, C17).

Shared by every surface that starts runs. Sits on the service.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from starlette.requests import HTTPConnection

from holdfast.agents.port import ServedAgent
from holdfast.api.requests.headers import check_header_text, header_text, headers_of
from holdfast.api.service import Service
from holdfast.config import OnRestart
from holdfast.errors import NotFoundError, RequestError, StoreError
from holdfast.ids import RunId, SessionId, run_of_response
from holdfast.owners import bare_name, owned_name, owner_of
from holdfast.store.records import RunFilter


def named_session(service: Service, request: HTTPConnection, in_body: str | None) -> SessionId | None:
    """The session that a request names, in its header or its body; None: it names none.

    Raises:
        RequestError: the name is too long or has control characters.
    """
    header = service.dialect.header("Session-Id")
    name = header_text(request, header)
    if name is not None:
        return SessionId(check_header_text(header, name))
    if in_body:
        return SessionId(service.dialect.session_prefix + check_header_text("session_id", in_body))
    return SessionId(service.dialect.default_session) if service.dialect.default_session else None


async def find_response(
    service: Service, name: str, *, param: str | None = None, code: str = "response_not_found"
) -> RunId:
    """The run behind the id of a response that is kept. Counts as using it (P11).

    Raises:
        NotFoundError: there is none: it never was, was not stored, or was deleted or evicted.
    """
    run = run_of_response(name)
    if run is None or not await service.store.use_response(run):
        raise NotFoundError(f"There is no response {name[:200]!r}.", param=param, code=code)
    return run


def conversation_session(name: str) -> SessionId:
    """A conversation's own session: stable, and nobody else's."""
    digest = hashlib.sha256(bare_name(name).encode("utf-8", "surrogatepass")).hexdigest()
    return owned_name(owner_of(name), SessionId(f"conv-{digest[:24]}"))


def session_key(service: Service, request: HTTPConnection) -> str | None:
    """C14: the scope of long-term memory; None: the session itself.

    Raises:
        RequestError: it is malformed, or the server has no API key, so that anybody could name anybody's memory.
    """
    header = service.dialect.header("Session-Key")
    key = header_text(request, header)
    if key is None:
        return None
    check_header_text(header, key)
    if not service.keyring.is_needed:
        raise RequestError(
            f"{header} needs a server with an API key (server.api_key): without one, anybody could read anybody's "
            "memory.",
            status=403,
            param=header,
            code="session_key_not_allowed",
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who serves a request."""

    agent: ServedAgent
    model: str
    """`provider/model`; of an agent of one's own, its name."""
    answers_as: str
    """C16, W1: what answers call the model; empty: by the name of whichever answered."""


MAX_NAME_CHARACTERS: Final = 256
"""A longer name of a model is none that every chunk of a stream should repeat."""


async def find_target(service: Service, asked: str | None, session: SessionId | None) -> Target:
    """C16, A2: who serves a request for a model by name. One that names none is for whom its session was with before.

    Raises:
        RequestError: it is unknown, and the server is strict about that.
    """
    if not asked and session is not None and (before := await _find_before(service, session)) is not None:
        return before
    return choose_target(service, asked)


async def _find_before(service: Service, session: SessionId) -> Target | None:
    """Whom a session was with last; None: nobody, or nobody who is still there."""
    try:
        last = next(iter(await service.store.list_runs(RunFilter(session=session, limit=1))), None)
    except StoreError:
        return None  # Whoever reads the session's history next says so (C13).
    agent = None if last is None else service.agents.find(last.agent)
    if last is None or agent is None:
        return None
    if last.answers_as == agent.name or last.model == agent.model:
        return _target(service, agent, last.answers_as)
    return _target(service, agent, last.model, last.model) if service.router.has_model(last.model) else None


def choose_target(service: Service, asked: str | None) -> Target:
    """C16: who serves a request for a model by name.

    Raises:
        RequestError: it is unknown, and the server is strict about that.
    """
    agents = service.agents
    if not asked or asked == agents.default.model:
        return _target(service, agents.default, asked)
    named = next((agent for agent in agents.listed if agent.name == asked), None)
    if named is not None:
        return _target(service, named, asked)
    if service.router.has_model(asked):
        return _target(service, agents.built_in, asked, asked)
    if service.settings.server.strict_models:
        raise _unknown_model(asked)
    return _target(service, agents.default, asked)


def _unknown_model(asked: str) -> RequestError:
    return RequestError(
        f"There is no model {asked[:200]!r} here; GET /v1/models lists those there are.",
        status=404,
        param="model",
        code="model_not_found",
    )


def _target(service: Service, agent: ServedAgent, asked: str | None, model: str = "") -> Target:
    # S12: an agent goes by its name and by its model's; what a key was not given is unknown to it.
    if not service.caller.may_use((model,) if model else (agent.name, agent.model)):
        raise _unknown_model(asked or agent.name)
    # An agent answers under its own name, if it was asked for by it.
    answers_as = agent.name if asked == agent.name else ""
    if not answers_as and service.dialect.repeats_model:
        answers_as = asked if asked and len(asked) <= MAX_NAME_CHARACTERS else service.agent_name
    return Target(agent=agent, model=model or agent.model, answers_as=answers_as)


def trace_parent(connection: HTTPConnection) -> str:
    """S10: the caller's trace, which the run's spans carry on; empty: it has none."""
    return headers_of(connection.scope).get("traceparent", "")


KEYED_GRACE_SECONDS: Final = 15.0
SDK_GRACE_SECONDS: Final = 1.5
"""Official SDKs send a plain request again within a second when its connection drops."""


MAX_GRACE_SECONDS = 7 * 24 * 3600
"""Who wants more means "continue"."""


def default_on_disconnect(connection: HTTPConnection, *, stream: bool) -> Literal["cancel"] | float:
    """C15, C17: what a request that does not say means. Who is going to come back by itself is waited for."""
    headers = headers_of(connection.scope)
    if "idempotency-key" in headers:
        return KEYED_GRACE_SECONDS
    if not stream and "x-stainless-retry-count" in headers:
        return SDK_GRACE_SECONDS
    return "cancel"


def parse_on_disconnect(value: Any) -> Literal["cancel", "continue"] | float | None:
    """C17: what happens to the run when its last reader leaves; None: the request does not say.

    Raises:
        RequestError: it is neither a word nor a number of seconds up to a week.
    """
    match value:
        case None:
            return None
        case "cancel" | "continue":
            return "cancel" if value == "cancel" else "continue"
        case int() | float() if not isinstance(value, bool) and 0 <= value <= MAX_GRACE_SECONDS:
            return float(value)
        case _:
            raise RequestError(
                f'on_disconnect must be "cancel", "continue" or a number of seconds up to {MAX_GRACE_SECONDS}.',
                param="on_disconnect",
                code="invalid_value",
            )


def choose_on_restart(
    agent: ServedAgent,
    given: OnRestart | None,
    on_disconnect: Literal["cancel", "continue"] | float,
    *,
    store: bool,
) -> OnRestart:
    """R15: what becomes of a run when its server is gone. One that dies with its client, or is not kept, ends."""
    if not store or not agent.can_resume:
        return "end"
    if given is not None:
        return given
    return agent.on_restart if on_disconnect == "continue" else "end"
