"""How a run is closed that did not end by itself: every call has an end, and whoever reads it learns why."""

from typing import Any

import pytest

from holdfast.agents.cuts import NOT_CARRIED_OUT
from holdfast.config import AgentSettings, LimitSettings
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Event,
    TextAdded,
    ToolCallBegan,
    ToolCallDropped,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
)
from holdfast.ids import CallId
from holdfast.messages import ToolSpec
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction
from holdfast.runs.closing import UNKNOWN_RESULT, close_interrupted
from holdfast.runs.log.transcript import Transcript
from holdfast.store.memory import MemoryStore
from holdfast.testing.upstream import says
from tests.runs_world import asks_for, calls_tool, open_world, outcome_of, read_all, read_until


def folded(*events: Event) -> Transcript:
    transcript = Transcript()
    transcript.extend(events, 0.0)
    return transcript


@pytest.mark.parametrize(
    ("outcome", "cause", "error"),
    [
        (Cancelled(reason="user"), "Stopped", "Stopped by a stop request"),
        (Cancelled(reason="client_disconnect"), "Interrupted", "Interrupted by the client leaving"),
        (Cancelled(reason="timeout"), "Timed out", "Timed out by a time limit"),
        (Cancelled(reason="shutdown"), "Server shut down", "Server shut down by shutdown"),
        (Cancelled(reason="replaced"), "Replaced", "Replaced by replaced"),
        (Incomplete(reason="server_restart"), "Server stopped", "Server stopped by server_restart"),
        (Failed(reason="internal", message="oh"), "Failed", "Failed by internal"),
    ],
)
def test_a_call_that_was_being_written_is_dropped_with_the_reason(outcome: Outcome, cause: str, error: str) -> None:
    """U13.b, U13.c, R5.a: the warning says what stopped it, behind what had been said."""
    begun: list[Event] = [ToolCallBegan(index=0, call_id=CallId("c"), name="echo"), ArgumentsAdded(index=0, text='{"é')]
    warning = f"{cause} mid tool-call (echo): the action was not carried out."
    for text in ("", "Well."):
        said: list[Event] = [TextAdded(text=text)] if text else []
        turns: list[Event] = [
            TurnStarted(turn=0, model="m"),
            Answered(finish="stop", model="m"),
            TurnStarted(turn=1, model="m"),
        ]
        assert close_interrupted(folded(*turns, *said, *begun), outcome) == [
            ToolCallDropped(call_id=CallId("c"), name="echo", bytes_received=4),
            TextAdded(text=f"\n\n{warning}" if text else warning),
            TurnCut(turn=1, error=error),
        ]


def test_a_call_that_the_provider_cut_is_dropped_once_whenever_the_server_dies() -> None:
    """U13.a, R8.b: between the provider's word that it was cut and the receipt, or after that."""
    cut: list[Event] = [
        TurnStarted(turn=0, model="m"),
        ToolCallBegan(index=0, call_id=CallId("c"), name="echo"),
        ArgumentsAdded(index=0, text='{"a'),
        Answered(finish="length", model="m"),
    ]
    receipt: list[Event] = [
        ToolCallDropped(call_id=CallId("c"), name="echo", bytes_received=3),
        TextAdded(text="Server stopped mid tool-call (echo): the action was not carried out."),
    ]
    restart = Incomplete(reason="server_restart")
    assert close_interrupted(folded(*cut), restart) == receipt
    assert close_interrupted(folded(*cut, *receipt), restart) == []
    assert folded(*cut).pending_calls() == () and folded(*cut).messages() == ()


def test_what_had_ended_by_itself_needs_nothing() -> None:
    """R3.b: neither a turn that was whole nor a tool that had its result is touched."""
    whole: list[Event] = [TurnStarted(turn=0, model="m"), TextAdded(text="a"), Answered(finish="stop", model="m")]
    assert close_interrupted(folded(*whole), Completed()) == []
    assert close_interrupted(folded(), Cancelled(reason="user")) == []


def test_every_call_of_a_turn_that_was_whole_gets_one_end() -> None:
    """R5.c, R8.c: done, running, asked about, not begun, the client's: each as it was; it is nobody's turn."""
    names = ["done", "running", "asked", "later", "theirs"]
    began = [delta for index, name in enumerate(names) for delta in calls_tool(name, "{}", name, index)]
    transcript = folded(
        TurnStarted(turn=0, model="m"),
        *began,
        Answered(finish="tool_calls", model="m"),
        ToolStarted(call_id=CallId("done"), name="done", arguments="{}", label=""),
        ToolFinished(call_id=CallId("done"), name="done", output="ok"),
        ToolStarted(call_id=CallId("running"), name="running", arguments="{}", label=""),
        ApprovalAsked(call_id=CallId("asked"), name="asked", arguments="{}", seconds=1.0),
    )

    def end(name: str, output: str, executed: Any) -> ToolFinished:
        return ToolFinished(call_id=CallId(name), name=name, output=output, failed=True, executed=executed)

    assert close_interrupted(transcript, Cancelled(reason="user")) == [
        ApprovalAnswered(call_id=CallId("asked"), approved=False, by="stop"),
        end("running", UNKNOWN_RESULT, "unknown"),
        end("asked", NOT_CARRIED_OUT, "no"),
        end("later", NOT_CARRIED_OUT, "no"),
        end("theirs", NOT_CARRIED_OUT, "no"),
    ]


def test_calls_that_the_run_ended_for_stay_open() -> None:
    """C11.a: they are the client's to answer, and those alone."""
    began = [delta for index, name in enumerate(("theirs", "later")) for delta in calls_tool(name, "{}", name, index)]
    transcript = folded(TurnStarted(turn=0, model="m"), *began, Answered(finish="tool_calls", model="m"))
    outcome = RequiresAction(reason="client_tools", calls=(CallId("theirs"),))
    [closed] = close_interrupted(transcript, outcome)
    assert isinstance(closed, ToolFinished) and closed.call_id == "later"


async def test_the_clients_calls_are_closed_when_a_run_is_stopped_while_the_servers_run() -> None:
    """C11.a, R5.c: they were not handed over, so nobody will send their results."""
    theirs = ToolSpec(name="theirs", description="", parameters={})
    async with open_world(MemoryStore(), [asks_for(("hang", "{}"), ("theirs", "{}"))]) as world:
        started = await world.start(client_tools=(theirs,))
        await world.tools.started.wait()
        await world.supervisor.stop(started.run)
        transcript = await (await world.supervisor.get(started.run)).read_transcript()
    assert transcript.pending_calls() == ()
    assert {result.name: result.executed for result in transcript.calls.results.values()} == {
        "hang": "unknown",
        "theirs": "no",
    }


async def test_figures_say_how_long_things_took_and_what_was_carried_out() -> None:
    """S10.a: a tool that failed, one that was ended, one that was denied; and what was counted is counted once."""
    agent = AgentSettings(prompt="", approval={"_hidden": "deny"})
    script = [asks_for(("echo", "{}"), ("fail", "{}"), ("_hidden", "{}")), says("ok"), asks_for(("hang", "{}"))]
    async with open_world(MemoryStore(), script, agent=agent, limits=LimitSettings()) as world:
        assert outcome_of(await world.run()) == Completed()
        started = await world.start(session="s2")
        await read_until(started.subscription, ToolStarted)
        await world.tools.started.wait()
        await world.supervisor.stop(started.run)
        await read_all(started.subscription)
        value = world.metrics.registry.get_sample_value
        tools = {
            (tool, result): value("holdfast_tool_calls_total", {"tool": tool, "result": result})
            for tool in ("echo", "fail", "_hidden", "hang")
            for result in ("completed", "failed")
        }
        assert {of: count for of, count in tools.items() if count is not None} == {
            ("echo", "completed"): 1,
            ("fail", "failed"): 1,
            ("hang", "failed"): 1,
        }
        assert value("holdfast_tokens_total", {"kind": "input"}) == 9
        assert value("holdfast_tokens_total", {"kind": "output"}) == 6
        assert value("holdfast_client_disconnects_total") == 0
        assert value("holdfast_time_to_upstream_close_seconds_count") == 1
        assert value("holdfast_run_duration_seconds_count", {"outcome": "cancelled"}) == 1
        assert value("holdfast_runs_total", {"outcome": "cancelled", "reason": "user"}) == 1
