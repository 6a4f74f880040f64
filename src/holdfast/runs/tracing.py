"""OpenTelemetry spans of runs (S10): one more reader of the log, there only when an exporter is configured.

`invoke_agent` for the run, in it `chat` for each turn and `execute_tool` for each tool, with the names of the GenAI
conventions and the times of the log. Sits on live runs; opentelemetry is imported only when tracing is on.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.events import (
    Answered,
    Batch,
    Event,
    RunEnded,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
)
from holdfast.ids import BEFORE_FIRST, CallId
from holdfast.outcomes import Completed, RequiresAction, outcome_message, outcome_name, outcome_reason
from holdfast.runs.live import LiveRun
from holdfast.runs.log.subscription import Subscription

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class RunSpans:
    """The spans of one run, folded from its log."""

    def __init__(self, tracer: "Tracer", agent_name: str, trace_parent: str) -> None:
        self._tracer = tracer
        self._agent_name = agent_name
        self._trace_parent = trace_parent
        self._run: Span | None = None
        self._turn: Span | None = None
        self._tools: dict[CallId, Span] = {}

    def add_batch(self, batch: Batch) -> None:
        """Take the next events of the log."""
        at = int(batch.at * 1e9)
        for event in batch.events:
            self._add(event, at)

    def _add(self, event: Event, at: int) -> None:
        match event:
            case RunStarted():
                self._run = self._start(
                    f"invoke_agent {self._agent_name}",
                    at,
                    {
                        "gen_ai.operation.name": "invoke_agent",
                        "gen_ai.agent.name": self._agent_name,
                        "gen_ai.conversation.id": event.session,
                        "gen_ai.request.model": event.model,
                        "holdfast.run.id": event.run,
                    },
                )
            case TurnStarted():
                self._turn = self._start(
                    f"chat {event.model}", at, {"gen_ai.operation.name": "chat", "gen_ai.request.model": event.model}
                )
            case Answered() if self._turn is not None:
                self._turn.set_attributes(
                    {
                        "gen_ai.response.model": event.model,
                        "gen_ai.response.finish_reasons": [event.finish],
                        "gen_ai.usage.input_tokens": event.usage.input_tokens,
                        "gen_ai.usage.output_tokens": event.usage.output_tokens,
                    }
                )
                self._turn.end(at)
                self._turn = None
            case TurnCut() if self._turn is not None:
                self._fail(self._turn, "turn_cut", event.error, at)
                self._turn = None
            case ToolStarted():
                self._tools[event.call_id] = self._start(
                    f"execute_tool {event.name}",
                    at,
                    {
                        "gen_ai.operation.name": "execute_tool",
                        "gen_ai.tool.name": event.name,
                        "gen_ai.tool.call.id": event.call_id,
                    },
                )
            case ToolFinished() if event.call_id in self._tools:
                span = self._tools.pop(event.call_id)
                if event.failed:
                    self._fail(span, "tool_failed", event.output[:200], at)
                else:
                    span.end(at)
            case RunEnded() if self._run is not None:
                outcome = event.outcome
                self._run.set_attributes(
                    {
                        "holdfast.outcome": outcome_name(outcome),
                        "gen_ai.usage.input_tokens": event.usage.input_tokens,
                        "gen_ai.usage.output_tokens": event.usage.output_tokens,
                    }
                )
                if isinstance(outcome, Completed | RequiresAction):
                    self._run.end(at)
                else:
                    self._fail(self._run, outcome_reason(outcome) or "", outcome_message(outcome), at)
            case _:
                pass

    def _start(self, name: str, at: int, attributes: Mapping[str, Any]) -> "Span":
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if self._run is not None:
            context = set_span_in_context(self._run)
        else:
            context = TraceContextTextMapPropagator().extract({"traceparent": self._trace_parent})
        return self._tracer.start_span(name, context=context, start_time=at, attributes=dict(attributes))

    def _fail(self, span: "Span", kind: str, message: str, at: int) -> None:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, message)
        span.end(at)


class Tracing:
    """Follows every run with a reader of its own, which counts as nobody: it keeps no run alive."""

    def __init__(self, tracer: "Tracer", agent_name: str) -> None:
        self._tracer = tracer
        self._agent_name = agent_name
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, live: LiveRun) -> None:
        """Make spans of a run as it goes."""
        task = asyncio.get_running_loop().create_task(self._follow(live), name=f"trace {live.request.run}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, live: LiveRun) -> None:
        spans = RunSpans(self._tracer, self._agent_name, live.request.trace_parent)
        subscription = Subscription(live.request.run, live.log, live.recorder, BEFORE_FIRST)
        try:
            async for batches in subscription.read():
                for batch in batches:
                    spans.add_batch(batch)
        except HoldfastError:
            # The log is gone or unreadable: there is nothing left to trace, and the run has told its readers.
            return

    async def aclose(self) -> None:
        """Follow those that are ending to their end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def open_tracer(environment: Mapping[str, str]) -> "Tracer | None":
    """A tracer, if the environment names an exporter (the usual OTEL_* variables); else None.

    Raises:
        ImportError: an exporter is configured and the `otel` extra is not installed.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not any(environment.get(name) for name in _EXPORTERS):
        return None
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "holdfast"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.get_tracer("holdfast")


_EXPORTERS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
