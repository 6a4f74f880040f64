"""R8: whatever a client has seen is in the log after kill -9 of a real server process."""

from tests.crashing import crash_rounds


async def test_after_kill_9_nothing_that_a_client_saw_is_missing_and_nothing_is_saved_twice() -> None:
    """R8.a, R8.b: at random moments of several streams; the partial is saved once, the log has no gap and one end."""
    figures = await crash_rounds(8, seed=7)
    assert figures.crashes == 8
    assert figures.streams >= 8
    assert figures.characters_seen > 0
    assert figures.events_seen > 0
