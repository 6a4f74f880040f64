"""Holdfast inside a program (A7): `async with holdfast.open(...) as server:`, without a server process.

The same server as `holdfast serve` opens, its runs, events and answers as objects, and its ASGI app to mount into
FastAPI or Starlette. Above: the user's own program, and `testing`. Sits on the composition root.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from holdfast.agents.declared import Agent
from holdfast.agents.request import RunRequest
from holdfast.api.requests.targets import find_target
from holdfast.assembly.own import own_agents
from holdfast.assembly.place import Place
from holdfast.cli.environment import read_environment
from holdfast.cli.startup import choose_model
from holdfast.errors import RequestError
from holdfast.events import Event, TextAdded
from holdfast.ids import CallId, RunId, SessionId, make_run_id, make_session_id
from holdfast.messages import Message, Usage, user_says
from holdfast.outcomes import Outcome, OutcomeName, outcome_message, outcome_name, outcome_reason
from holdfast.runs.log.subscription import Subscription
from holdfast.runs.log.transcript import Transcript
from holdfast.server import Parts, Server, open_server
from holdfast.settings import data_directory, load_settings
from holdfast.upstream.providers import PROVIDERS


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run_id: str
    session_id: str
    text: str
    outcome: OutcomeName
    """Only `completed` is success."""
    reason: str | None
    message: str
    """One sentence for a person."""
    usage: Usage
    warnings: tuple[str, ...] = ()

    @property
    def completed(self) -> bool:
        """Is it whole?"""
        return self.outcome == "completed"


class OpenRun:
    """A run, going on or ended, as an object."""

    def __init__(self, server: "EmbeddedServer", run: RunId, session: SessionId, subscription: Subscription) -> None:
        self.id: str = run
        self.session_id: str = session
        self._server = server
        self._run = run
        self._subscription: Subscription | None = subscription

    async def events(self) -> AsyncIterator[Event]:
        """Its log, from the start, live to its end."""
        async with await self._read() as subscription, aclosing(subscription.read()) as log:
            async for batches in log:
                for batch in batches:
                    for event in batch.events:
                        yield event

    async def text(self) -> AsyncIterator[str]:
        """The answer, piece by piece. How it ended is `answer`'s to say."""
        async with aclosing(self.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextAdded):
                    yield event.text

    async def answer(self) -> RunAnswer:
        """What it came to, when it has ended. Whoever is cancelled while waiting leaves it, as a client would."""
        transcript = Transcript()
        async with await self._read() as subscription, aclosing(subscription.read()) as log:
            async for batches in log:
                for batch in batches:
                    transcript.add_batch(batch)
        outcome: Outcome | None = transcript.outcome
        assert outcome is not None, "a log that was read to its end has an outcome"
        return RunAnswer(
            run_id=self.id,
            session_id=self.session_id,
            text=transcript.text,
            outcome=outcome_name(outcome),
            reason=outcome_reason(outcome),
            message=outcome_message(outcome),
            usage=transcript.spending.usage,
            warnings=tuple(transcript.warnings),
        )

    async def stop(self) -> bool:
        """End it at once, and wait until what it had is saved; False: it had ended."""
        return await self._server.runs.stop(self._run)

    async def steer(self, text: str) -> None:
        """Say something to it."""
        await self._server.runs.steer(self._run, user_says(text))

    async def approve(self, approved: bool = True, *, call_id: str | None = None) -> None:
        """Approve, or deny, a call that waits; the only one, if it is not named."""
        await self._server.runs.answer_approval(self._run, None if call_id is None else CallId(call_id), approved)

    async def _read(self) -> Subscription:
        """The place that was taken at its start, once; then a new one."""
        subscription, self._subscription = self._subscription, None
        return subscription or await self._server.runs.subscribe(self._run)


class EmbeddedServer:
    """A server inside a program."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.runs = server.service.supervisor
        """All its runs; for what has no shorter way here."""

    @property
    def app(self) -> ASGIApp:
        """Everything of the server over HTTP, to be mounted or served."""
        return self.server.app

    @property
    def agents(self) -> list[str]:
        """The names of its agents, the default one first."""
        return [agent.name for agent in self.server.service.agents.listed]

    async def start(
        self,
        input: str | Sequence[Message],
        *,
        agent: str | None = None,
        session_id: str | None = None,
        instructions: str = "",
        detached: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> OpenRun:
        """Start a run.

        Args:
            input: the user's text; or messages, of which the last is new.
            agent: by its name, or `provider/model`; by default the session's, else the default one.
            session_id: the conversation that it belongs to; by default one of its own.
            instructions: the system layer of this run.
            detached: does it go on when nobody reads it?
            metadata: notes on the run.

        Raises:
            RequestError: not now, or not this.
        """
        service = self.server.service
        session = SessionId(session_id) if session_id else None
        target = await find_target(service, agent, session)
        if agent and agent not in (target.agent.name, target.model):
            raise RequestError(f"There is no agent {agent!r} here. Agents: {', '.join(self.agents)}.", param="agent")
        messages: tuple[Message, ...] = (user_says(input),) if isinstance(input, str) else tuple(input)
        request = RunRequest(
            run=make_run_id(),
            session=session or make_session_id(),
            surface="runs",
            agent=target.agent.name,
            model=target.model,
            answers_as=target.answers_as,
            input=messages[-1:],
            history=messages[:-1],
            stored_history=session is not None and len(messages) == 1,
            instructions=instructions,
            on_disconnect="continue" if detached else "cancel",
            on_restart=target.agent.on_restart if detached else "end",
            lane="wait" if session is not None else None,
            metadata=dict(metadata or {}),
        )
        started = await self.runs.start(request)
        return OpenRun(self, started.run, started.record.session, started.subscription)

    async def ask(self, input: str | Sequence[Message], **options: Any) -> RunAnswer:
        """Start a run, as `start` does, and wait for its end."""
        return await (await self.start(input, **options)).answer()


@asynccontextmanager
async def open(
    store: str = "memory:",
    *,
    agents: Sequence[Any] = (),
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    parts: Parts | None = None,
) -> AsyncIterator[EmbeddedServer]:
    """Open a server inside a program.

    Args:
        store: where runs are kept: `sqlite:///x.db`, `memory:`, `postgresql://…`.
        agents: functions or `holdfast.Agent`; the first is the default one. By default the built-in one.
        config: a settings file; none is looked for.
        settings: settings by name: `{"model": "openai/gpt-5.2", "server.api_key": "…"}`.
        parts: what stands in for what the settings name: for tests.

    Raises:
        ConfigError, StoreUnavailableError: it cannot start; the message says what to mend.
    """
    environment = read_environment()
    loaded = load_settings(
        {"store.url": store, **(settings or {})},
        environment,
        None if config is None else Path(config),
        Path.cwd(),
        known_providers=PROVIDERS.keys(),
        searches=False,
    )
    chosen = loaded.settings
    if parts is None and not all(_is_own(agent) for agent in agents or [None]):
        chosen = msgspec.structs.replace(chosen, model=choose_model(loaded, environment)[0])
    opening = open_server(
        chosen,
        Place(data_directory(environment), environment, loaded.path),
        agents=own_agents(agents),
        parts=parts,
    )
    async with opening as server:
        yield EmbeddedServer(server)


def _is_own(agent: Any) -> bool:
    """Does it need no model of the server's?"""
    return agent is not None and (not isinstance(agent, Agent) or agent.use is not None)
