"""An agent as a tool of another (A6): its run is a run of its own, which its parent reads as any client would.

So whatever ends the parent leaves the child, and the child ends with its last reader (R3). Above: the composition root,
which gives it the supervisor. Sits on `supervisor` and the port to tools.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, Protocol, assert_never

import msgspec

from holdfast.agents.directory import Agents
from holdfast.agents.request import RunRequest
from holdfast.errors import HoldfastError, ToolError
from holdfast.events import RunDelegated
from holdfast.ids import make_run_id, make_session_id
from holdfast.messages import ToolSpec, user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, RequiresAction, outcome_message
from holdfast.owners import owned_name, owner_of
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.start import Started
from holdfast.store.accounts import Allowance
from holdfast.store.records import IdempotencyKey
from holdfast.tools.port import ToolContext, ToolResult

MAX_DEPTH: Final = 5
"""Agents that ask each other must come to an end."""


class RunStarter(Protocol):
    """Who starts runs: the supervisor."""

    async def start(
        self, request: RunRequest, key: IdempotencyKey | None = None, allowance: Allowance | None = None
    ) -> Started:
        """Start a run, and subscribe to it from its start."""
        ...


class Delegation:
    """What lets agents ask each other; the server fills it in when all of them are there."""

    def __init__(self) -> None:
        self._agents: Agents | None = None
        self._runs: RunStarter | None = None
        self._allow: Callable[[RunRequest], Allowance | None] = lambda request: None

    def open(self, agents: Agents, runs: RunStarter, allow: Callable[[RunRequest], Allowance | None]) -> None:
        """From here on they can; `allow`: what a run of one's key may have (S12)."""
        self._agents, self._runs, self._allow = agents, runs, allow

    async def ask(self, name: str, question: str, context: ToolContext) -> ToolResult:
        """Have an agent answer a question, and wait for its answer.

        Raises:
            ToolError: it could not be asked, or has no answer.
        """
        assert self._agents is not None and self._runs is not None, "no run begins before the server is open"
        agent = self._agents.find(name)
        if agent is None or context.depth >= MAX_DEPTH:
            raise ToolError(f"The agent {name} cannot be asked: agents ask each other at most {MAX_DEPTH} deep.")
        request = RunRequest(
            run=make_run_id(),
            # S12: the same owner sees it, and the same key pays for it.
            session=owned_name(owner_of(context.session), make_session_id()),
            asked_by=context.asked_by,
            surface="runs",
            agent=agent.name,
            model=agent.model,
            answers_as=agent.name,
            parent_run=context.run,
            depth=context.depth + 1,
            heard=None if context.heard is None else await context.heard(),
            input=(user_says(question),),
            memory_scope=context.memory_scope,
            can_ask=context.can_ask,
        )
        try:
            started = await self._runs.start(request, None, self._allow(request))
        except HoldfastError as error:
            raise ToolError(f"The agent {name} could not be asked: {error.message}") from error
        transcript = Transcript()
        async with started.subscription as subscription, aclosing(subscription.read()) as log:
            if context.tell is not None and context.call is not None:
                context.tell((RunDelegated(call_id=context.call, run=started.run, agent=name),))
            async for batches in log:
                for batch in batches:
                    transcript.add_batch(batch)
        return _result(name, transcript)


def _result(name: str, transcript: Transcript) -> ToolResult:
    outcome = transcript.outcome
    assert outcome is not None, "a log that was read to its end has an outcome"
    match outcome:
        case Completed():
            return ToolResult(output=transcript.text)
        case Incomplete() | Cancelled():
            why = f"[The answer of {name} is not whole: {outcome_message(outcome)}]"
            return ToolResult(output=f"{transcript.text}\n\n{why}".strip(), failed=True)
        case Failed() | RequiresAction():
            raise ToolError(f"The agent {name} has no answer: {outcome_message(outcome)}")
        case _:
            assert_never(outcome)


class _Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: Annotated[str, msgspec.Meta(min_length=1, description="The task, with all that it needs to know.")]


class AgentTools:
    """Other agents, as tools."""

    def __init__(self, delegation: Delegation, agents: Mapping[str, str], reading: Collection[str] = ()) -> None:
        """`agents`: their names, each with what it is for; `reading`: those that may see files (S17)."""
        self._delegation = delegation
        schema = msgspec.json.schema(_Question)["$defs"]["_Question"]
        parameters = {key: value for key, value in schema.items() if key != "title"}
        self._specs = tuple(
            ToolSpec(
                name=name,
                description=f"Ask the agent {name}, which knows nothing of this conversation. {about}".rstrip(),
                parameters=parameters,
                # Its run has limits of its own.
                seconds=float("inf"),
                reads=name in reading,
            )
            for name, about in agents.items()
        )

    def specs(self) -> Sequence[ToolSpec]:
        """One for each agent."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """Who is asked what."""
        return f"{name} {arguments.get('input', '')}"

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Ask one, and wait for its answer.

        Raises:
            ToolError: it has none.
        """
        try:
            question = msgspec.convert(arguments, _Question)
        except msgspec.ValidationError as error:
            raise ToolError(f"Wrong arguments for {name}: {error}. It takes: input.") from None
        return await self._delegation.ask(name, question.input, context)

    async def aclose(self) -> None:
        """Nothing is held."""
