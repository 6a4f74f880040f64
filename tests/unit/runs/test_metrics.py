"""The histogram of our own says what the library's would (S10)."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from holdfast.runs.telemetry.metrics import _SECONDS, CommitTimes


@pytest.mark.parametrize("times", [[], [0.0005, 0.001, 0.0011, 0.3, 599.0, 600.0, 10_000.0], list(_SECONDS)])
def test_commit_times_are_told_as_the_library_tells_them(times: list[float]) -> None:
    """S10.a: bucket for bucket, also on the bounds and beyond the last."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    commits = CommitTimes()
    ours.register(commits)
    histogram = Histogram("holdfast_store_commit_seconds", "How long a commit took", buckets=_SECONDS, registry=theirs)
    for seconds in times:
        commits.observe(seconds)
        histogram.observe(seconds)
    lines = {line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line}
    assert set(generate_latest(ours).decode().splitlines()) == lines
