"""Runs that outlive their servers, whatever becomes of those, and what must be true of every run (R15, R16).

Jobs are clients that do not give up: they start a run, follow it over every restart, steer it, approve its calls and
answer its own. The model counts on from what it is shown, so that whatever is lost or said twice is seen; tools write
into a ledger on disk. Used by tests, by `make crash`, and wherever servers are killed.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.chaos.recorded import RecordedRequest
from holdfast.testing import Reply, tool_call

CONFIG = """
model = "scripted/m"
[server]
shutdown_grace_seconds = 0.1
[stream]
retries = 2
[agent]
prompt = ""
workspace = "{workspace}"
tools = ["terminal", "files"]
approval = {{ write_file = "ask" }}
[limits]
max_concurrent_runs = 2000
[providers.scripted]
protocol = "chat_completions"
base_url = "{url}"
api_key = "k"
"""
STEP = 20
"""How far the model counts in a turn."""
TURNS = 4
PATIENCE_SECONDS = 60.0
"""So long may nothing happen to what a client waits for, whatever befalls its servers; longer, and it is stuck."""
BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError)
"""A connection that says no more. Its client asks again."""
AWAY = (502, 503, 504)
"""What a server on its way out says, and a load balancer whose server has just gone."""
_DROPPED = re.compile(r"\n*Server stopped mid tool-call \([^)]*\): the actions? w\w+ not carried out\.\n*")


def counting_model(request: RecordedRequest) -> Reply:
    """Counts on from whatever it is shown, and calls what its job wants after each step."""
    messages = request.body["messages"]
    words = str(next(m["content"] for m in messages if m["role"] == "user")).split()
    said = " ".join(_DROPPED.sub("", m.get("content") or "") for m in messages if m["role"] == "assistant")
    start = max((int(number) for number in re.findall(r"\d+", said)), default=0) + 1
    results = sum(m["role"] == "tool" for m in messages)
    place = {0: 0, 1: 1, 2: 2, 4: 3}.get(results, 0) if words[0] == "work" else results
    last = (place + 1) * STEP
    if start > last:
        # All is said; somebody has said something meanwhile, or only the call is missing.
        text: tuple[str, ...] = () if _calls(words, place) else ("Heard. ",)
    else:
        text = tuple(f"{number} " for number in range(start, last + 1))
    # Not in the first attempt alone: whoever thinks again after a cut may do so.
    return Reply(reasoning="Let me count. ", text=text, calls=_calls(words, place), delay_seconds=0.004)


def _calls(words: list[str], place: int) -> tuple[Any, ...]:
    kind, job = words[0], words[1]
    if kind == "respond":
        return (tool_call("lookup", job=job),) if place == 0 else ()
    match place:
        case 0:
            return (tool_call("terminal", command=f"echo {job}.a >>ledger; sleep 0.05"),)
        case 1:
            return (tool_call("write_file", path=f"{job}.txt", content=job),)
        case 2:
            noted = tool_call("terminal", command=f"echo {job}.b >>ledger")
            return (noted, tool_call("list_files", path="."))
        case _:
            return ()


class Site:
    """Where the jobs' server is, whenever it is there."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        """Any of them may be asked anything."""
        self._next = 0

    def url(self) -> str:
        self._next += 1
        return self.urls[self._next % len(self.urls)]

    @asynccontextmanager
    async def opened(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with aiohttp.ClientSession(timeout=timeout) as http:
            async with http.request(method, self.url() + path, json=body, headers=named) as response:
                yield response

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Until somebody answers who is not on the way out. Only for what may be asked twice."""
        until, last = time.monotonic() + PATIENCE_SECONDS, ""
        while time.monotonic() < until:
            try:
                async with self.opened(method, path, body, **headers) as response:
                    if response.status not in AWAY:
                        return response.status, await response.json(content_type=None)
                    last = f"{response.status}: {(await response.text())[:300]}"
            except (*BROKEN, ValueError) as error:
                last = repr(error)
            await asyncio.sleep(0.02)
        raise AssertionError(f"{method} {path} has had no answer for {PATIENCE_SECONDS:.0f} s; the last try: {last}")


@dataclass
class Job:
    """One piece of work, and what its client saw of it."""

    name: str
    site: Site
    chance: random.Random
    seen: dict[str, dict[int, Any]] = field(default_factory=dict)
    """Of each run or response that was followed: its events by their number."""
    connections: int = 0
    acknowledged: list[str] = field(default_factory=list)
    """What was said to it and confirmed."""
    perhaps: list[str] = field(default_factory=list)
    """What was said, and the connection broke before it was confirmed."""
    runs: list[str] = field(default_factory=list)

    # Following

    async def follow(self, path: str, seen: dict[int, Any], *, by_header: bool) -> AsyncIterator[dict[str, Any]]:
        """A run's events, or a response's, to the end, over any number of connections; each new one once."""
        number = "sequence_number"
        heard_at = time.monotonic()
        while True:
            _check_is_moving(path, seen, heard_at)
            last = max(seen, default=-1)
            # Sometimes from further back: what was read before must be read again, word for word.
            after = self.chance.choice([last, last, max(-1, last - self.chance.randrange(30))])
            if path.startswith("/v1/responses"):
                where, headers = f"{path}?stream=true" + (f"&starting_after={after}" if after >= 0 else ""), {}
            elif by_header and after >= 0:
                where, headers = path, {"Last-Event-ID": str(after)}
            else:
                where, headers = f"{path}?after={after}", {}
            try:
                async with self.site.opened("GET", where, **headers) as response:
                    self.connections += 1
                    assert response.status in (200, *AWAY), (response.status, await response.text())
                    async for frame in _frames(response.content):
                        if "data" not in frame or frame["data"] == "[DONE]":
                            _check_is_moving(path, seen, heard_at)
                            continue
                        event = msgspec.json.decode(frame["data"])
                        assert "id" in frame or number in event, event
                        place = int(frame["id"]) if "id" in frame else event[number]
                        if place in seen:
                            assert seen[place] == event, (place, seen[place], event)
                            continue
                        assert place == max(seen, default=-1) + 1, (place, max(seen, default=-1))
                        seen[place] = event
                        yield event
                        heard_at = time.monotonic()
                        if event["type"] in ENDS:
                            return
            except BROKEN:
                pass
            await asyncio.sleep(0.02)

    async def steer(self, run: str, text: str) -> None:
        """Say something, once."""
        try:
            async with self.site.opened("POST", f"/v1/runs/{run}/messages", {"content": text}) as response:
                await response.read()
                if response.status == 202:
                    self.acknowledged.append(text)
                elif response.status in (502, 504):
                    self.perhaps.append(text)
                else:
                    assert response.status in (404, 409, 503), response.status
        except BROKEN:
            self.perhaps.append(text)

    async def approve(self, run: str, call: str) -> None:
        """Until it is approved, by whoever."""
        body = {"approved": True, "call_id": call}
        status, answer = await self.site.ask("POST", f"/v1/runs/{run}/approval", body)
        assert status in (200, 409), answer


def _check_is_moving(path: str, seen: Mapping[int, Any], heard_at: float) -> None:
    if time.monotonic() - heard_at > PATIENCE_SECONDS:
        newest = f"event {max(seen)}, {seen[max(seen)]['type']}" if seen else "nothing at all"
        raise AssertionError(f"{path} is stuck: nothing new in {PATIENCE_SECONDS:.0f} s after {newest}")


ENDS = {"run.ended", "response.completed", "response.incomplete", "response.failed"}


async def _frames(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, str]]:
    frame: dict[str, str] = {}
    async for line in content:
        if not line.endswith(b"\n"):
            return  # The connection died in the middle of a line: nobody has seen that.
        text = line.decode().rstrip("\n")
        if not text:
            yield frame
            frame = {}
        elif not text.startswith(":"):
            name, _, value = text.partition(": ")
            frame[name] = value


async def work(job: Job) -> None:
    """A detached run of four turns with tools, an approval and somebody who talks to it."""
    body = {"input": f"work {job.name}", "session_id": f"s-{job.name}"}
    status, started = await job.site.ask("POST", "/v1/runs", body, Idempotency_Key=f"key-{job.name}")
    assert status in (200, 202), started
    run = started["run_id"]
    job.runs.append(run)
    steers_at = job.chance.randrange(10, 150)
    seen = job.seen.setdefault(run, {})
    async for event in job.follow(f"/v1/runs/{run}/events", seen, by_header=job.chance.random() < 0.5):
        if event["type"] == "approval.asked":
            await job.approve(run, event["call_id"])
        if len(seen) == steers_at:
            await job.steer(run, f"By the way, {job.name}.")


async def respond(job: Job) -> None:
    """A background response with a tool of the client's own, and the one that follows it."""
    body: dict[str, Any] = {
        "input": f"respond {job.name}",
        "background": True,
        "tools": [{"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {}}}],
    }
    for part in range(2):
        status, response = await job.site.ask("POST", "/v1/responses", body, Idempotency_Key=f"key-{job.name}-{part}")
        assert status == 200, response
        job.runs.append("run_" + response["id"].removeprefix("resp_"))
        seen = job.seen.setdefault(response["id"], {})
        async for _ in job.follow(f"/v1/responses/{response['id']}", seen, by_header=False):
            pass
        _, done = await job.site.ask("GET", f"/v1/responses/{response['id']}")
        calls = [item for item in done["output"] if item["type"] == "function_call"]
        if done["status"] != "completed" or part:
            return
        assert len(calls) == 1, done["output"]
        output = {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "found"}
        body = {**body, "input": [output], "previous_response_id": response["id"]}


KINDS = {"work": work, "respond": respond}


@dataclass
class Verdict:
    """What was found, over all jobs."""

    runs: int = 0
    completed: int = 0
    given_up: int = 0
    """Ended as incomplete because three attempts in a row brought nothing (R15)."""
    resumed: int = 0
    handed_over: int = 0
    events: int = 0
    connections: int = 0
    tools: int = 0
    unknown: int = 0
    away_seconds: list[float] = field(default_factory=list)
    """From the last word on one server to the first on the next."""


async def judge(jobs: list[Job], site: Site, workspace: Path) -> Verdict:
    """Look at everything afterwards; raises AssertionError where a promise is broken."""
    verdict = Verdict()
    ledger = (workspace / "ledger").read_text().split() if (workspace / "ledger").exists() else []
    assert sorted(set(ledger)) == sorted(ledger), "a tool was carried out twice"
    for job in jobs:
        verdict.connections += job.connections
        counted: list[str] = []
        is_whole = True
        for run in job.runs:
            log = await read_log(site, run)
            is_whole = _judge_log(run, log, job, verdict) and is_whole
            _judge_tools(log, set(ledger), verdict)
            counted += re.findall(r"\d+", _DROPPED.sub("", _text(log)))
        numbers = [str(number) for number in range(1, len(counted) + 1)]
        assert counted == numbers, (job.name, counted)
        expected = TURNS * STEP if job.name.startswith("work") else 2 * STEP
        assert not is_whole or len(counted) == expected, (job.name, len(counted))
        await _judge_session(site, job)
    return verdict


async def read_log(site: Site, run: str) -> list[dict[str, Any]]:
    """All events of a run that has ended; of another, what it says on one connection."""
    until, last = time.monotonic() + PATIENCE_SECONDS, ""
    while True:
        assert time.monotonic() < until, f"the log of {run} cannot be read; the last try: {last}"
        try:
            async with site.opened("GET", f"/v1/runs/{run}/events") as response:
                assert response.status in (200, *AWAY), (response.status, await response.text())
                frames = [frame async for frame in _frames(response.content) if "id" in frame]
                if response.status == 200:
                    break
                last = str(response.status)
        except BROKEN as error:
            last = repr(error)
        await asyncio.sleep(0.02)
    assert [int(frame["id"]) for frame in frames] == list(range(len(frames)))
    return [msgspec.json.decode(frame["data"]) for frame in frames]


def _judge_log(run: str, log: list[dict[str, Any]], job: Job, verdict: Verdict) -> bool:
    """One start, one end, attempts in order, and whatever a client saw is in it. Did it complete?"""
    kinds = [event["type"] for event in log]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.ended"), (run, kinds[:2], kinds[-2:])
    assert (kinds.count("run.started"), kinds.count("run.ended")) == (1, 1), run
    attempts = [event["attempt"] for event in log if event["type"] == "run.resumed"]
    assert attempts == list(range(2, 2 + len(attempts))), attempts
    seen = job.seen.get(run, {})
    assert {number: log[number] for number in seen} == seen, f"{run}: a client saw what the log does not have"
    times = [event["at"] for event in log]
    for place, kind in enumerate(kinds):
        if kind == "run.resumed":
            # What was cut off is closed in the same step: the last word on the other server is older.
            before = [at for at in times[:place] if at < times[place]]
            verdict.away_seconds.append(times[place] - before[-1] if before else 0.0)
    outcome = log[-1]["outcome"]
    verdict.runs += 1
    verdict.events += len(log)
    verdict.resumed += len(attempts)
    verdict.handed_over += kinds.count("run.handed_over")
    if outcome["outcome"] == "incomplete":
        assert outcome["reason"] == "server_restart", outcome
        assert len(attempts) >= 2, "given up too early"
        verdict.given_up += 1
        return False
    expected = "completed" if "tool_call.ready" not in kinds else "requires_action"
    assert outcome["outcome"] == expected, outcome
    verdict.completed += 1
    return True


def _judge_tools(log: list[dict[str, Any]], ledger: set[str], verdict: Verdict) -> None:
    """What the log says was done was done, and what it says was not was not."""
    commands = {
        event["call_id"]: match[1]
        for event in log
        if event["type"] == "tool.started" and (match := re.search(r"echo (\S+) >>ledger", event["arguments"]))
    }
    results = [event for event in log if event["type"] == "tool.finished"]
    assert len({event["call_id"] for event in results}) == len(results), "a call has two results"
    for event in results:
        verdict.tools += 1
        verdict.unknown += event["executed"] == "unknown"
        noted = commands.get(event["call_id"])
        if noted is not None and event["executed"] != "unknown":
            assert (noted in ledger) == (event["executed"] == "yes"), (event, noted in ledger)


def _text(log: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in log if event["type"] == "text.added")


async def _judge_session(site: Site, job: Job) -> None:
    """What was said is kept once, in the log as in the session."""
    _, run = await site.ask("GET", f"/v1/runs/{job.runs[-1]}")
    _, messages = await site.ask("GET", f"/v1/sessions/{run['session_id']}/messages?limit=500")
    said: list[Mapping[str, Any]] = messages["data"]
    texts = [str(message["content"]) for message in said if message["role"] == "user"]
    for text in job.acknowledged:
        assert texts.count(text) == 1, (job.name, text, texts)
    for text in job.perhaps:
        assert texts.count(text) <= 1, (job.name, text, texts)
    saved = "".join(_DROPPED.sub("", m.get("content") or "") for m in said if m["role"] == "assistant")
    logged = "".join([_DROPPED.sub("", _text(await read_log(site, run))) for run in job.runs])
    assert re.findall(r"\d+", saved) == re.findall(r"\d+", logged), job.name
