"""Figures about runs for /metrics (S10): counted from what the log and the supervisor know. Sits on live runs.

The counters are prometheus-client's, in a registry of their own so that two servers in one process do not mix.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.events import RunResumed
from holdfast.outcomes import outcome_name, outcome_reason
from holdfast.runs.live import LiveRun
from holdfast.runs.log.transcript import Transcript
from holdfast.runs.team.caller import shown_name
from holdfast.store.accounts import Prices, cost_of

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


MAX_KEYS = 1_000


class CommitTimes(Collector):
    """A histogram for what happens between a token and its reader: a tenth of the cost of the library's own."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """A commit took so long."""
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As the library wants it, when somebody asks."""
        bounds = (*(str(float(bound)) for bound in _SECONDS), "+Inf")
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(
            "holdfast_store_commit_seconds", "How long a commit took", buckets=buckets, sum_value=self._sum
        )


class Metrics:
    """All counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs = Counter(
            "holdfast_runs", "Runs that ended, by outcome and reason", ["outcome", "reason"], registry=self.registry
        )
        self.executing = Gauge("holdfast_runs_executing", "Runs that are executing", registry=self.registry)
        self.replicas = Gauge("holdfast_replicas", "Servers that share the store", registry=self.registry)
        self.dropped = Counter(
            "holdfast_dropped_tool_calls", "Tool calls whose arguments never came whole", registry=self.registry
        )
        self.disconnects = Counter(
            "holdfast_client_disconnects", "Runs whose last reader left before the end", registry=self.registry
        )
        self.first_token = Histogram(
            "holdfast_time_to_first_token_seconds",
            "From the start of a run to its first delta",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.upstream_close = Histogram(
            "holdfast_time_to_upstream_close_seconds",
            "From an interruption to the upstream connection closed",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "holdfast_run_duration_seconds", "How long runs took", ["outcome"], buckets=_SECONDS, registry=self.registry
        )
        self.tokens = Counter("holdfast_tokens", "Tokens as providers counted them", ["kind"], registry=self.registry)
        self.tools = Counter("holdfast_tool_calls", "Tools carried out", ["tool", "result"], registry=self.registry)
        self.replayed = Counter(
            "holdfast_replayed_events", "Events sent from the log rather than live", registry=self.registry
        )
        self.resumed = Counter(
            "holdfast_runs_resumed", "Runs that went on after their server was gone", ["reason"], registry=self.registry
        )
        self.away = Histogram(
            "holdfast_run_away_seconds",
            "From the last that a run said on one server to its going on",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.asked_again = Counter(
            "holdfast_tokens_asked_again",
            "Input tokens of turns that were asked again because a server was gone",
            registry=self.registry,
        )
        self.key_runs = Counter(
            "holdfast_key_runs", "Runs that ended, by the key that asked", ["key"], registry=self.registry
        )
        self.key_tokens = Counter(
            "holdfast_key_tokens", "Tokens by the key that asked", ["key", "kind"], registry=self.registry
        )
        self.key_cost = Counter(
            "holdfast_key_cost", "Cost by the key that asked, where prices are known", ["key"], registry=self.registry
        )
        self.prices: Prices = {}
        self._keys: set[str] = set()
        self.commits = CommitTimes()
        self.registry.register(self.commits)

    def stored(self, seconds: float, operations: int) -> None:
        """A group of writes became durable."""
        self.commits.observe(seconds)

    def replays(self, events: int) -> None:
        """Somebody reads so many events that have been told before."""
        self.replayed.inc(max(0, events))

    def run_resumed(self, event: RunResumed, away_seconds: float | None) -> None:
        """A run goes on that had been left behind that long ago."""
        self.resumed.labels(event.reason).inc()
        if away_seconds is not None:
            self.away.observe(max(0.0, away_seconds))

    def upstream_closed(self, live: LiveRun, now: float) -> None:
        """The run's model call is over; if it was interrupted, that long ago."""
        if live.state.interruption is not None and live.times.interrupted_at is not None:
            self.upstream_close.observe(now - live.times.interrupted_at)
            if live.state.interruption.reason == "client_disconnect":
                self.disconnects.inc()

    def _count_use(self, key: str, transcript: Transcript) -> None:
        """S13: by the names of keys; so many are told apart."""
        if key not in self._keys and len(self._keys) >= MAX_KEYS:
            key = "others"
        self._keys.add(key)
        name = shown_name(key)
        self.key_runs.labels(name).inc()
        self.key_tokens.labels(name, "input").inc(transcript.spending.usage.input_tokens)
        self.key_tokens.labels(name, "output").inc(transcript.spending.usage.output_tokens)
        for model, usage in transcript.spending.by_model.items():
            if (cost := cost_of(self.prices, model, usage)) is not None:
                self.key_cost.labels(name).inc(cost)

    def run_ended(self, live: LiveRun, now: float) -> None:
        """A run is over and told."""
        transcript = live.recorder.transcript
        if transcript.outcome is None:
            return
        self.duration.labels(outcome_name(transcript.outcome)).observe(now - live.times.created_at)
        if live.times.first_delta_at is not None:
            self.first_token.observe(live.times.first_delta_at - live.times.created_at)
        self.run_counted(transcript, live.request.asked_by)

    def run_counted(self, transcript: Transcript, asked_by: str) -> None:
        """A run is over, here or because its server was gone."""
        if transcript.outcome is None:
            return
        self.runs.labels(outcome_name(transcript.outcome), outcome_reason(transcript.outcome) or "").inc()
        self.asked_again.inc(transcript.spending.asked_again)
        self.dropped.inc(len(transcript.calls.dropped))
        self.tokens.labels("input").inc(transcript.spending.usage.input_tokens)
        self.tokens.labels("output").inc(transcript.spending.usage.output_tokens)
        self._count_use(asked_by, transcript)
        for result in transcript.calls.results.values():
            if result.executed == "no":
                continue  # Denied, or a name that the model made up: nothing was carried out.
            self.tools.labels(result.name, "failed" if result.failed else "completed").inc()
