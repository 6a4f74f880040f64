"""What is promised with a number, and stands when nobody sets another."""

from holdfast.config import Settings


def test_what_nobody_sets_is_as_promised() -> None:
    """U8.a, U14.a, U14.b, R14.a, C7.a, P11.a, S7.a, S8.a: each number of docs/contract.md."""
    settings = Settings()
    stream, store, server = settings.stream, settings.store, settings.server
    assert stream.retries == 2
    assert stream.stall_seconds == 180
    assert stream.connect_seconds < stream.first_byte_seconds < stream.stall_seconds
    assert store.retention_days == 30
    assert store.max_responses == 10_000
    assert server.keepalive_seconds == 15
    assert server.max_body_bytes == 10_000_000
    assert (server.host, server.port) == ("127.0.0.1", 8642)
