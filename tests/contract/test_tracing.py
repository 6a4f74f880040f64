"""Spans of runs: what an exporter gets, in memory and over OTLP/HTTP from a real server."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast.agents.request import RunRequest
from holdfast.config import AgentSettings, ServerSettings
from holdfast.events import Batch, RunResumed, ToolFinished
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage
from holdfast.runs.telemetry.tracing import RunSpans
from holdfast.testing import Fault, Parts, Reply, ScriptedProvider, tool_call
from tests.crashing import CONFIG
from tests.serving import CHAT, Client, asking, running_server, serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
HEADER = {"traceparent": f"00-{TRACE}-{CALLER}-01"}


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in (span.attributes or {}).items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_is_a_span_with_its_turns_and_tools_inside(stream: bool, tmp_path: Path) -> None:
    """S10.b, S10.c: `invoke_agent`, `chat`, `execute_tool` with the GenAI attributes, below the caller's own span."""
    (tmp_path / "a.txt").write_text("tea")
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    used = Usage(input_tokens=10, output_tokens=5)
    script = [Reply(calls=(tool_call("read_file", path="a.txt"),), usage=used), Reply(text="Tea.", usage=used)]
    exporter = InMemorySpanExporter()
    async with serving(script, agent=agent, parts=Parts(span_exporter=exporter)) as world:
        answer = await world.client.post(CHAT, asking(stream=stream), **HEADER)
        run, session = answer.headers["X-Holdfast-Run-Id"], answer.headers["X-Holdfast-Session-Id"]
        await world.ended(run)
    *inside, invoked = exporter.get_finished_spans()
    assert invoked.name == "invoke_agent holdfast"
    assert [span.name for span in inside] == ["chat m-1", "execute_tool read_file", "chat m-1"]
    assert invoked.parent is not None
    assert (f"{invoked.parent.trace_id:032x}", f"{invoked.parent.span_id:016x}") == (TRACE, CALLER)
    for span in inside:
        assert span.parent is not None
        assert span.context is not None
        assert invoked.context is not None
        assert span.parent.span_id == invoked.context.span_id
        assert f"{span.context.trace_id:032x}" == TRACE
    assert all(span.status.status_code is not StatusCode.ERROR for span in (invoked, *inside))
    assert attributes_of(invoked) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "holdfast",
        "gen_ai.conversation.id": session,
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m-1",
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 10,
        "holdfast.run.id": run,
        "holdfast.outcome": "completed",
    }
    assert attributes_of(inside[0]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m-1",
        "gen_ai.response.model": "m-1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    tool = attributes_of(inside[1])
    assert tool.pop("gen_ai.tool.call.id").startswith("call_")
    assert tool == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read_file",
        "holdfast.tool.executed": "yes",
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", {"input": "Hello?"}), ("/v1/runs", {"input": "Hello?"}), (CHAT, asking())],
)
async def test_every_surface_carries_on_the_callers_trace(path: str, body: dict[str, Any]) -> None:
    """S10.c: a run belongs to the trace of whoever started it, whichever API they used."""
    exporter = InMemorySpanExporter()
    async with serving([Reply(text="Hi.")], parts=Parts(span_exporter=exporter)) as world:
        await world.ended((await world.client.post(path, body, **HEADER)).headers["X-Holdfast-Run-Id"])
    parent = by_name(exporter)["invoke_agent holdfast"].parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, CALLER)


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{CALLER}-01"])
async def test_a_run_without_a_usable_trace_begins_its_own(header: str) -> None:
    """S10.b, S10.c: whatever the header says, the run is traced."""
    exporter = InMemorySpanExporter()
    async with serving([Reply(text="Hi.")], parts=Parts(span_exporter=exporter)) as world:
        headers = {"traceparent": header} if header else {}
        await world.ended((await world.client.post(CHAT, asking(), **headers)).headers["X-Holdfast-Run-Id"])
    assert by_name(exporter)["invoke_agent holdfast"].parent is None


async def test_a_failure_is_a_failed_span(tmp_path: Path) -> None:
    """S10.b: the run's outcome and reason; a cut turn; a tool that failed, without what it said."""
    agent = AgentSettings(prompt="", tools=("files",), workspace=str(tmp_path))
    script = [
        Reply(calls=(tool_call("read_file", path="a-secret-name.txt"),)),
        Reply(text="Half an", fault=Fault("reset", 1)),
    ]
    exporter = InMemorySpanExporter()
    async with serving(script, agent=agent, parts=Parts(span_exporter=exporter)) as world:
        await world.ended((await world.client.chat(stream=True)).headers["X-Holdfast-Run-Id"])
    failed = [s for s in exporter.get_finished_spans() if s.status.status_code is StatusCode.ERROR]
    kinds = {span.name.split()[0]: attributes_of(span)["error.type"] for span in failed}
    assert kinds == {
        "execute_tool": "tool_failed",
        "chat": "turn_cut",
        "invoke_agent": "incomplete.stream_interrupted",
    }
    assert all("a-secret-name" not in (span.status.description or "") for span in failed)


class BrokenExporter(SpanExporter):
    """Fails whenever it is handed something."""

    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError("no")

    def shutdown(self) -> None:
        pass


async def test_an_exporter_that_fails_disturbs_no_run() -> None:
    """S10.b: the log, its readers and the next run notice nothing of it."""
    async with serving([Reply(text="Hi.")] * 2, parts=Parts(span_exporter=BrokenExporter())) as world:
        for stream in (False, True):
            answer = await world.client.chat(stream=stream)
            assert (answer.text, answer.finish) == ("Hi.", "stop")


@contextmanager
def otlp_receiver() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """A collector of traces on loopback: its address, and all that it is sent."""
    taken: list[tuple[str, ExportTraceServiceRequest]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_real_server_sends_its_spans_over_otlp(tmp_path: Path) -> None:
    """S10.b, S10.c: `OTEL_EXPORTER_OTLP_ENDPOINT` is all it takes; what is left is sent when the server ends."""
    async with ScriptedProvider([Reply(text="Hi.")]) as provider:
        with otlp_receiver() as (url, taken):
            env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "helper"}
            with running_server(tmp_path, CONFIG.format(url=provider.url), env=env) as server:
                async with Client(server.base_url) as http:
                    assert (await http.post(CHAT, asking(), **HEADER)).finish == "stop"
                assert await asyncio.to_thread(server.terminate) == 0
    assert {path for path, _ in taken} == {"/v1/traces"}
    of_resource = [resource for _, request in taken for resource in request.resource_spans]
    services = {a.value.string_value for r in of_resource for a in r.resource.attributes if a.key == "service.name"}
    assert services == {"helper"}
    spans = {span.name: span for r in of_resource for scope in r.scope_spans for span in scope.spans}
    assert set(spans) == {"invoke_agent holdfast", "chat m"}
    assert spans["invoke_agent holdfast"].trace_id.hex() == TRACE
    assert spans["invoke_agent holdfast"].parent_span_id.hex() == CALLER
    assert spans["chat m"].parent_span_id == spans["invoke_agent holdfast"].span_id


def test_without_an_exporter_opentelemetry_is_not_even_loaded(tmp_path: Path) -> None:
    """S10.b: who does not trace does not pay for it; who wants to and cannot is told how to mend it."""
    script = (
        "import sys; from holdfast.runs.telemetry.tracing import open_tracing\n"
        "assert open_tracing({}, None, 'a') is None\n"
        "assert open_tracing({'OTEL_EXPORTER_OTLP_ENDPOINT': 'x', 'OTEL_SDK_DISABLED': 'true'}, None, 'a') is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from holdfast.errors import ConfigError\n"
        "try: open_tracing({'OTEL_EXPORTER_OTLP_ENDPOINT': 'x'}, None, 'a')\n"
        "except ConfigError as error: print(error.message)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in ran.stdout
    assert "pip install 'holdfast[otel]'" in ran.stdout


async def test_a_run_that_is_handed_over_is_a_span_on_each_server(tmp_path: Path) -> None:
    """S10.b, R16.a: what the first did ends with the hand-over; the second's says which attempt it is."""
    exporter = InMemorySpanExporter()
    script, no_grace = [Reply(text=("One ", "two"), hold_after=1)], ServerSettings(shutdown_grace_seconds=0)
    async with serving(script, data_dir=tmp_path, server=no_grace, parts=Parts(span_exporter=exporter)) as world:
        run = (await world.client.post("/v1/runs", {"input": "Hello?"}, **HEADER)).json["run_id"]
        async with world.client.opened("GET", f"/v1/runs/{run}/events") as live:
            await live.content.readuntil(b'"One "')
    before = exporter.get_finished_spans()
    assert [span.name for span in before] == ["chat m-1", "invoke_agent holdfast"]
    assert [attributes_of(span)["holdfast.outcome"] for span in before] == ["handed_over", "handed_over"]
    exporter = InMemorySpanExporter()
    async with serving([Reply(text="two")], data_dir=tmp_path, parts=Parts(span_exporter=exporter)) as world:
        assert (await world.client.get(f"/v1/runs/{run}/events")).status == 200
        await world.ended(run)
    *_, invoked = exporter.get_finished_spans()
    attributes = attributes_of(invoked)
    assert invoked.parent is not None
    assert f"{invoked.parent.trace_id:032x}" == TRACE
    assert (attributes["holdfast.run.attempt"], attributes["holdfast.run.resumed_after"]) == (2, "handed_over")
    assert attributes["holdfast.outcome"] == "completed"


def test_a_tool_that_is_carried_out_once_more_is_a_span_where_it_is() -> None:
    """S10.b, R15.g: its beginning is in the log of the server that is gone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    request = RunRequest(run=RunId("run_1"), session=SessionId("s"), surface="runs", model="m", input=())
    spans = RunSpans(provider.get_tracer("t"), "holdfast", request)
    call = CallId("call_0")
    spans.push(
        Batch(
            EventNumber(7),
            100.0,
            (
                RunResumed(attempt=2, reason="server_restart", cut="tool", repeated=(call,)),
                ToolFinished(call_id=CallId("call_1"), name="terminal", output="", failed=True, executed="unknown"),
            ),
        )
    )
    done = ToolFinished(call_id=call, name="read_file", output="tea", executed="yes", seconds=2.0)
    spans.push(Batch(EventNumber(9), 103.0, (done,)))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("execute_tool read_file", 101 * 10**9, 103 * 10**9)
