"""Failures at their edges: how long is waited, what is worth another model, and what an error's parts are worth."""

from random import Random
from typing import Any

import pytest

from holdfast.config import ModelSettings, Settings
from holdfast.errors import ProviderRefusedError
from holdfast.testing import HurriedClock, ScriptedUpstream, says
from holdfast.upstream.failures import (
    MAX_WORD_CHARS,
    cut_words,
    failure_of_event,
    failure_of_response,
    parse_retry_after,
    read_complaint,
)
from holdfast.upstream.fallback import fallbacks_of, is_worth_another_model
from holdfast.upstream.http import MAX_ERROR_BYTES
from holdfast.upstream.retry import BASE_SECONDS, CAP_SECONDS, RETRY_AFTER_CAP_SECONDS, RetryingUpstream
from tests.upstream_world import JSON, MemoryResponse, MemoryTransport, hear, upstream_over


class Longest(Random):
    """Always the longest wait that may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def busy(seconds: float | None) -> ProviderRefusedError:
    return ProviderRefusedError("busy", status=429, retry_after_seconds=seconds)


async def test_a_provider_is_waited_for_as_long_as_it_says_and_never_shorter_than_by_ourselves() -> None:
    """U9.c: up to and with half a minute."""
    for asked, waited in ((None, BASE_SECONDS), (0.0, BASE_SECONDS), (0.1, BASE_SECONDS), (7.0, 7.0), (30.0, 30.0)):
        async with ScriptedUpstream([busy(asked), says("ok")]) as upstream:
            heard = await hear(RetryingUpstream(upstream, 2, HurriedClock(), Longest()))
        assert [retry.wait_seconds for retry in heard.retries] == [waited]
        assert heard.text == "ok"
    async with ScriptedUpstream([busy(RETRY_AFTER_CAP_SECONDS + 0.1)]) as upstream:
        heard = await hear(RetryingUpstream(upstream, 2, HurriedClock(), Longest()))
    assert (heard.text, heard.retries, type(heard.error)) == ("", [], ProviderRefusedError)


async def test_waits_double_up_to_a_limit() -> None:
    """U8.b: however often it is tried."""
    async with ScriptedUpstream([*(busy(None) for _ in range(6)), says("ok")]) as upstream:
        heard = await hear(RetryingUpstream(upstream, 6, HurriedClock(), Longest()))
    assert [retry.wait_seconds for retry in heard.retries] == [0.5, 1.0, 2.0, 4.0, CAP_SECONDS, CAP_SECONDS]


@pytest.mark.parametrize(
    ("status", "code", "worth"),
    [
        (400, None, False),
        (413, None, False),
        (422, None, False),
        (401, None, True),
        (404, None, True),
        (429, None, True),
        (500, None, True),
        (500, "context_length_exceeded", False),
        (None, None, True),
    ],
)
def test_another_model_is_asked_unless_the_request_is_what_is_wrong(
    status: int | None, code: str | None, worth: bool
) -> None:
    """U15.a: it would be as wrong there."""
    assert is_worth_another_model(ProviderRefusedError("no", status=status, code=code)) is worth


def test_a_model_without_fallbacks_of_its_own_has_those_of_the_default_if_it_is_that() -> None:
    """U15.a: an entry that says something else of a model says nothing of its fallbacks."""
    models = {"a/one": ModelSettings(), "b/two": ModelSettings(), "c/three": ModelSettings(fallbacks=("x/y",))}
    settings = Settings(model="a/one", fallbacks=("d/four",), models=models)
    assert [fallbacks_of(settings, model) for model in ("a/one", "b/two", "c/three")] == [("d/four",), (), ("x/y",)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Thu, 01 Jan 99999999999 00:00:00 GMT", None),
    ],
)
def test_what_cannot_be_a_time_to_wait_is_none(value: str | None, seconds: float | None) -> None:
    """C6.a: and a time that is over is no wait."""
    assert parse_retry_after(value) == seconds


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"error": {"message": "m", "code": 429}, "status": 500}, 429),
        ({"error": {"message": "m"}, "status": 503}, 503),
        ({"message": "m", "code": "404"}, 404),
        ({"message": "m", "code": 599}, 599),
        ({"message": "m", "code": 600}, None),
        ({"message": "m", "code": 399}, None),
        ({"message": "m", "code": 400}, 400),
        ({"message": "m", "code": "0404"}, None),
        ({"message": "m", "status": True}, None),
    ],
)
def test_the_innermost_status_that_is_one_counts(value: Any, status: int | None) -> None:
    """U9.a: what the provider says of its error goes before what a router says around it."""
    assert read_complaint(value).status == status


def test_error_is_no_name_for_an_error() -> None:
    """U9.a: every one could be called so, and it tells clients nothing."""
    assert read_complaint({"type": "error", "message": "m"}).code is None
    assert (
        read_complaint({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}).code
        == "overloaded_error"
    )


def test_an_error_that_names_its_status_is_no_lost_connection() -> None:
    """U8.a: whatever its words."""
    lost = failure_of_event({"error": {"message": "Connection reset by peer"}})
    told = failure_of_event({"error": {"message": "Connection reset by peer", "code": 400}})
    assert type(lost).__name__ == "TransportLostError"
    assert isinstance(told, ProviderRefusedError)
    assert told.status == 400


def test_a_refusal_is_told_with_all_its_parts() -> None:
    """U9.a, C6.a: status, code, words, and when to try again."""
    error = failure_of_response(429, b'{"error": {"message": "Slow down.", "type": "rate_limit_error"}}', "12")
    assert isinstance(error, ProviderRefusedError)
    assert (error.message, error.status, error.code, error.retry_after_seconds, error.in_stream) == (
        "Slow down.",
        429,
        "rate_limit_error",
        12.0,
        False,
    )


def test_a_text_is_cut_between_words_where_it_must_be_cut() -> None:
    """U9.a: what fits is left alone, and a word that is longer than any key may be cut."""
    assert cut_words("one two", 7) == "one two"
    assert cut_words("one two three", 7) == "one two"
    assert cut_words("one two three", 9) == "one two"
    assert cut_words("one two three", 3) == "one"
    assert cut_words("three", 2) == "th"
    long = "x" * (MAX_WORD_CHARS + 100)
    assert cut_words(f"a {long}", MAX_WORD_CHARS + 3) == f"a {long[: MAX_WORD_CHARS + 1]}"
    assert cut_words(f"a {'x' * MAX_WORD_CHARS}y", MAX_WORD_CHARS + 2) == "a"


async def test_no_more_of_an_explanation_is_read_than_can_be_told() -> None:
    """U9.a, U17: one that does not end is cut off."""
    response = MemoryResponse([b"x" * 1024] * 1000, status=500, headers=JSON)
    heard = await hear(upstream_over(MemoryTransport(response)))
    assert isinstance(heard.error, ProviderRefusedError)
    assert len(response.left) == 1000 - MAX_ERROR_BYTES // 1024
    assert response.ended == ["cut"]


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("https://user:secret-word@other.test/v1", "other.test"),
        ("https://other.test:8443/v1", "other.test:8443"),
        ("http://[", "another address"),
        ("", "another address"),
    ],
)
async def test_a_redirect_is_told_by_its_host_alone(location: str, named: str) -> None:
    """U9.a: an address may have a password in it."""
    response = MemoryResponse(status=308, headers={"location": location})
    heard = await hear(upstream_over(MemoryTransport(response)))
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.status == 308
    assert f" redirects to {named}; " in heard.error.message
    assert "secret-word" not in heard.error.message


async def test_milliseconds_to_wait_are_milliseconds() -> None:
    """C6.a: and go before seconds."""
    headers = {**JSON, "retry-after-ms": "1500", "retry-after": "9"}
    heard = await hear(upstream_over(MemoryTransport(MemoryResponse([b"{}"], status=429, headers=headers))))
    assert isinstance(heard.error, ProviderRefusedError)
    assert heard.error.retry_after_seconds == 1.5
