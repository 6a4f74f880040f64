"""OpenTelemetry spans of runs (S10): one more reader of the log, there only when an exporter is configured.

`invoke_agent` for the run, in it `chat` for each turn and `execute_tool` for each tool, with the names of the GenAI
conventions and the times of the log. Keeps no run alive, and no run waits for it. Sits on live runs; the tracer comes
from `open_tracing`, and opentelemetry is imported only when tracing is wanted.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.agents.request import RunRequest
from holdfast.errors import ConfigError
from holdfast.events import (
    Answered,
    Batch,
    Event,
    RunEnded,
    RunHandedOver,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
)
from holdfast.ids import CallId
from holdfast.messages import Usage
from holdfast.outcomes import Completed, Outcome, RequiresAction, outcome_message, outcome_name, outcome_reason
from holdfast.runs.live import LiveRun
from holdfast.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS: Final = 200


class Tracing:
    """Makes spans of every run as it goes."""

    def __init__(self, tracer: "Tracer", agent_name: str, close: Callable[[], None]) -> None:
        """`close` sends what has not been sent; it may block."""
        self._tracer = tracer
        self._agent_name = agent_name
        self.close = close

    def follow(self, live: LiveRun) -> None:
        """Read a run that has not said anything yet in this process."""
        live.recorder.followers.append(RunSpans(self._tracer, live.request.agent or self._agent_name, live.request))


class RunSpans:
    """The spans of one run, folded from its log: of one attempt, where it went on after its server was gone (R15).

    A `LogReader`.
    """

    def __init__(self, tracer: "Tracer", agent_name: str, request: RunRequest) -> None:
        self._tracer = tracer
        self._agent_name = agent_name
        self._request = request
        self._run: Span | None = None
        self._turn: Span | None = None
        self._tools: dict[CallId, Span] = {}

    def push(self, batch: Batch) -> None:
        """Take the next events of the log."""
        at = int(batch.at * 1e9)
        try:
            for event in batch.events:
                take = _TAKE.get(type(event))
                if take is not None:
                    take(self, event, at)
        except Exception:
            # Somebody else's exporter is no reason to disturb a run or its readers.
            logger.exception("a run could not be traced")

    def abandon(self) -> None:
        """There will be no log, so that nothing was traced of it."""

    def _run_started(self, _event: RunStarted, at: int) -> None:
        self._begin_run(at, {})

    def _run_resumed(self, event: RunResumed, at: int) -> None:
        attributes = {"holdfast.run.attempt": event.attempt, "holdfast.run.resumed_after": event.reason}
        if self._run is None:
            self._begin_run(at, attributes)
        else:
            # It had not begun before, but for its place in the store.
            self._run.set_attributes(attributes)

    def _begin_run(self, at: int, attributes: Mapping[str, Any]) -> None:
        request = self._request
        self._run = self._begin(
            "invoke_agent",
            self._agent_name,
            at,
            {
                "gen_ai.agent.name": self._agent_name,
                "gen_ai.conversation.id": request.session,
                **_model("gen_ai.request.model", request.model),
                "holdfast.run.id": request.run,
                **attributes,
            },
        )

    def _handed_over(self, _event: RunHandedOver, at: int) -> None:
        """R16: what this server did of it is over; the next one begins a span of its own."""
        for span in (*self._tools.values(), self._turn, self._run):
            if span is not None:
                span.set_attribute("holdfast.outcome", "handed_over")
                span.end(at)

    def _turn_started(self, event: TurnStarted, at: int) -> None:
        model = _model("gen_ai.request.model", event.model)
        self._turn = self._begin("chat", model["gen_ai.request.model"], at, model)

    def _answered(self, event: Answered, at: int) -> None:
        span, self._turn = self._turn, None
        if span is not None:
            span.set_attributes(_model("gen_ai.response.model", event.model))
            span.set_attribute("gen_ai.response.finish_reasons", [event.finish])
            span.set_attributes(_usage(event.usage))
            span.end(at)

    def _turn_cut(self, event: TurnCut, at: int) -> None:
        span, self._turn = self._turn, None
        if span is not None:
            _fail(span, "turn_cut", event.error, at)

    def _tool_started(self, event: ToolStarted, at: int) -> None:
        self._tools[event.call_id] = self._begin_tool(event, at)

    def _begin_tool(self, event: ToolStarted | ToolFinished, at: int) -> "Span":
        attributes = {"gen_ai.tool.name": event.name, "gen_ai.tool.call.id": event.call_id}
        return self._begin("execute_tool", event.name, at, attributes)

    def _tool_finished(self, event: ToolFinished, at: int) -> None:
        span = self._tools.pop(event.call_id, None)
        if span is None and event.executed == "yes":
            # It was begun on a server that is gone, and carried out once more here (R15).
            span = self._begin_tool(event, at - int(event.seconds * 1e9))
        if span is None:
            return
        span.set_attribute("holdfast.tool.executed", event.executed)
        if event.failed:
            # What a tool says may be anybody's secret, and a trace goes to others than the log.
            _fail(span, "tool_failed", "", at)
        else:
            span.end(at)

    def _run_ended(self, event: RunEnded, at: int) -> None:
        span, outcome = self._run, event.outcome
        if span is None:
            return
        span.set_attributes(_usage(event.usage))
        span.set_attribute("holdfast.outcome", outcome_name(outcome))
        if isinstance(outcome, Completed | RequiresAction):
            span.end(at)
        else:
            _fail(span, _error_type(outcome), outcome_message(outcome), at)

    def _begin(self, operation: str, of: str, at: int, attributes: Mapping[str, Any]) -> "Span":
        return self._tracer.start_span(
            f"{operation} {of}",
            context=self._context(),
            start_time=at,
            attributes={"gen_ai.operation.name": operation, **attributes},
        )

    def _context(self) -> "Context":
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if self._run is not None:
            return set_span_in_context(self._run)
        return TraceContextTextMapPropagator().extract({"traceparent": self._request.trace_parent})


_TAKE: Final[dict[type[Event], Callable[[RunSpans, Any, int], None]]] = {
    RunStarted: RunSpans._run_started,
    RunResumed: RunSpans._run_resumed,
    RunHandedOver: RunSpans._handed_over,
    TurnStarted: RunSpans._turn_started,
    Answered: RunSpans._answered,
    TurnCut: RunSpans._turn_cut,
    ToolStarted: RunSpans._tool_started,
    ToolFinished: RunSpans._tool_finished,
    RunEnded: RunSpans._run_ended,
}
"""By type, because nearly all events are tokens, which have no span."""


def _model(name: str, model: str) -> dict[str, str]:
    """A model under its attribute, and whose it is: `openai/gpt-5.2` is OpenAI's `gpt-5.2`."""
    provider, _, bare = model.rpartition("/")
    return {name: bare, "gen_ai.provider.name": provider} if provider else {name: bare}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }


def _error_type(outcome: Outcome) -> str:
    return f"{outcome_name(outcome)}.{outcome_reason(outcome)}"


def _fail(span: "Span", kind: str, message: str, at: int) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, message[:MAX_MESSAGE_CHARACTERS])
    span.end(at)


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_tracing(environment: Mapping[str, str], exporter: "SpanExporter | None", agent_name: str) -> Tracing | None:
    """Tracing, if there is an exporter or the environment names one (the usual OTEL_* variables); else None.

    Raises:
        ConfigError: one is named, and what it takes is not installed.
    """
    named = next((name for name in _ENDPOINTS if environment.get(name)), None)
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if exporter is None and (named is None or is_off):
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    except ImportError as error:
        raise _not_installed(named) from error
    name = environment.get("OTEL_SERVICE_NAME") or "holdfast"
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        provider.add_span_processor(BatchSpanProcessor(_make_exporter(named)))
    return Tracing(provider.get_tracer("holdfast", __version__), agent_name, provider.shutdown)


def _make_exporter(named: str | None) -> "SpanExporter":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise _not_installed(named) from error
    # Where to and with which headers it reads from the same variables.
    return OTLPSpanExporter()


def _not_installed(named: str | None) -> ConfigError:
    return ConfigError(
        f"{named or 'An exporter'} is set, and what sends traces is not installed. Install it with "
        "pip install 'holdfast[otel]', or unset the variable."
    )
