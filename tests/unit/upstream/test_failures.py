"""Errors of providers, routers and local servers, in the shapes they have in the field."""

import time
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from holdfast.errors import ProviderRefusedError, StreamingUnsupportedError, TransportLostError
from holdfast.upstream.failures import failure_of_event, failure_of_response, is_connection_lost, parse_retry_after


def refused(status: int, body: object, retry_after: str | None = None) -> ProviderRefusedError:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    failure = failure_of_response(status, data, retry_after)
    assert isinstance(failure, ProviderRefusedError), failure
    return failure


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (
            {"error": {"message": "No such model", "type": "invalid_request_error", "code": "model_not_found"}},
            "No such model",
            "model_not_found",
        ),
        (
            {"error": {"message": "No such model", "type": "invalid_request_error", "code": None}},
            "No such model",
            "invalid_request_error",
        ),
        ({"error": "No such model"}, "No such model", None),
        ({"error": {"error": {"message": "No such model"}}}, "No such model", None),
        ({"message": "No such model"}, "No such model", None),
        (
            {"object": "error", "message": "No such model", "type": "NotFoundError", "code": 404},
            "No such model",
            "NotFoundError",
        ),
        ({"detail": "No such model"}, "No such model", None),
        ({"detail": [{"loc": ["body", "model"], "msg": "No such"}, {"msg": "model"}]}, "No such; model", None),
        ({"detail": {"error": {"message": "No such model"}}}, "No such model", None),
        ([{"error": {"code": 404, "message": "No such model", "status": "NOT_FOUND"}}], "No such model", "NOT_FOUND"),
        (
            {"type": "error", "error": {"type": "not_found_error", "message": "No such model"}},
            "No such model",
            "not_found_error",
        ),
        ({"errors": [{"message": "No such model", "code": 7003}]}, "No such model", None),
        (b"No such\n model", "No such model", None),
        (
            b"<html><style>p{}</style><title>404</title><body><h1>Not&nbsp;Found</h1></body></html>",
            "404 Not Found",
            None,
        ),
        (b"", "The provider answered 404 Not Found without a message.", None),
        (b"{}", "The provider answered 404 Not Found without a message.", None),
        (b"null", "The provider answered 404 Not Found without a message.", None),
        ({"error": {"code": "nope"}}, "The provider answered 404 Not Found (nope) without a message.", "nope"),
        (b"\xff\xfe", "\ufffd\ufffd", None),
    ],
)
def test_the_providers_own_message_is_found_in_every_shape(body: object, message: str, code: str | None) -> None:
    failure = refused(404, body)
    assert (failure.message, failure.status, failure.code) == (message, 404, code)


def test_a_routers_error_carries_what_the_provider_behind_it_said() -> None:
    raw = '{"error":{"message":"max_tokens is too large"}}'
    body = {
        "error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "provider_name": "X"}}
    }
    assert refused(400, body).message == "Provider returned error: max_tokens is too large"
    body["error"]["metadata"]["raw"] = "Upstream says no"  # type: ignore[index]
    assert refused(400, body).message == "Provider returned error: Upstream says no"


def test_a_long_body_is_cut() -> None:
    assert len(refused(500, b"x" * 100_000).message) == 500
    assert len(refused(500, {"error": {"message": "x" * 100_000}}).message) == 2_000


def test_errors_within_errors_end_somewhere() -> None:
    nested: Any = "deep"
    for _ in range(400):
        nested = {"error": nested}
    assert refused(500, nested).status == 500


@pytest.mark.parametrize(
    "secret", ["sk-proj-abcdefghijklmnop1234", "AIzaSyA1234567890abcdefghijk", "gsk_abcdefghijklmnopqrst"]
)
def test_a_key_in_a_message_is_not_repeated(secret: str) -> None:
    assert (
        refused(401, {"error": {"message": f"Incorrect API key: {secret}."}}).message
        == "Incorrect API key: [redacted]."
    )
    assert secret not in refused(401, f"Authorization: Bearer {secret} is wrong".encode()).message


# Waiting.


def test_retry_after_is_seconds_or_a_date() -> None:
    assert refused(429, {"error": "slow"}, "2.5").retry_after_seconds == 2.5
    soon = refused(429, {"error": "slow"}, formatdate(time.time() + 30, usegmt=True)).retry_after_seconds
    assert soon is not None
    assert 25 < soon <= 30
    assert refused(429, {"error": "slow"}, formatdate(time.time() - 30, usegmt=True)).retry_after_seconds == 0
    assert refused(429, {"error": "slow"}).retry_after_seconds is None


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "Mon, 99 Foo 2026"])
def test_a_retry_after_that_says_nothing_is_none(value: str) -> None:
    assert parse_retry_after(value) is None


# Streaming refused.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            400,
            {
                "message": "Your organization must be verified to stream this model. Please go to: x",
                "param": "stream",
                "code": "unsupported_value",
            },
        ),
        (400, {"message": "Unsupported value.", "param": "stream", "code": "unsupported_value"}),
        (400, {"message": "Streaming is not supported for this model."}),
        (422, {"message": "This model does not support streaming"}),
        (400, {"message": "`stream` is unsupported"}),
        (501, {"message": "stream mode not implemented"}),
        (404, {"message": "The model o1-pro doesn't support streaming responses"}),
    ],
)
def test_a_model_that_cannot_stream_is_recognised(status: int, error: dict[str, str]) -> None:
    failure = failure_of_response(status, msgspec.json.encode({"error": error}), None)
    assert isinstance(failure, StreamingUnsupportedError)
    assert failure.message == error["message"]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Unsupported parameter: 'temperature' is not supported with this model."),
        (400, "Unsupported parameter: 'stream_options' is not supported."),
        (400, "The upstream provider does not support images"),
        (400, "Non-streaming is not supported for this model"),
        (400, "parameter stream=false is not supported"),
        (400, "Tools are not supported. Set stream to true."),
        (500, "Streaming is not supported"),
        (401, "You are not allowed"),
    ],
)
def test_other_refusals_are_not_taken_for_it(status: int, message: str) -> None:
    assert refused(status, {"error": {"message": message}}).message == message


# Too long.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            400,
            {
                "message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
                "code": "context_length_exceeded",
            },
        ),
        (400, {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}),
        (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request_error"}),
        (
            400,
            {
                "message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
                "type": "invalid_request_error",
            },
        ),
        (
            400,
            {
                "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                "code": 400,
                "status": "INVALID_ARGUMENT",
            },
        ),
        (
            400,
            {
                "message": "This model's maximum context length is 4096 tokens. Your request has 5000.",
                "type": "BadRequestError",
                "code": 400,
            },
        ),
        (
            400,
            {
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "code": 400,
            },
        ),
        (413, {"message": "Request is too large: input is too long"}),
    ],
)
def test_a_conversation_that_is_too_long_has_one_code_and_keeps_its_message(status: int, error: dict[str, Any]) -> None:
    failure = refused(status, {"error": error})
    assert (failure.code, failure.message) == ("context_length_exceeded", error["message"])


def test_other_limits_are_not_taken_for_it() -> None:
    assert (
        refused(429, {"error": {"message": "Too many tokens per minute", "code": "rate_limit_exceeded"}}).code
        == "rate_limit_exceeded"
    )
    assert refused(400, {"error": {"message": "max_tokens must be at most 4096", "code": "invalid"}}).code == "invalid"


# Inside a stream.


@pytest.mark.parametrize(
    "message",
    [
        "Network connection lost.",
        "network connection lost",
        "Connection reset by peer",
        "read ECONNRESET",
        "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
        "socket hang up",
        "terminated",
        "TypeError: terminated",
        "Premature close",
        "Server disconnected without sending a response.",
        "peer closed connection without sending complete message body (incomplete chunked read)",
        "stream disconnected before completion",
        "Connection error.",
        "unexpected EOF",
        "fetch failed",
    ],
)
def test_an_error_that_means_a_lost_connection_is_one(message: str) -> None:
    assert is_connection_lost(message)
    for error in (message, {"message": message}, {"message": message, "code": "server_error"}):
        failure = failure_of_event({"error": error})
        assert type(failure) is TransportLostError
        assert failure.message == message


@pytest.mark.parametrize(
    "message",
    [
        "Your account has been terminated",
        "The model is overloaded",
        "Request was aborted by the content policy",
        "Invalid connection string",
        "This endpoint needs a network with IPv6",
        "",
    ],
)
def test_other_messages_are_not_taken_for_it(message: str) -> None:
    assert not is_connection_lost(message)
    assert isinstance(failure_of_event({"error": {"message": message}}), ProviderRefusedError)


@pytest.mark.parametrize(("field", "value"), [("code", 502), ("status", 502), ("code", "502"), ("status_code", 502)])
def test_a_status_makes_it_the_providers_own_error(field: str, value: object) -> None:
    failure = failure_of_event({"error": {"message": "Network connection lost.", field: value}})
    assert isinstance(failure, ProviderRefusedError)
    assert failure.status == 502


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ({"message": "x", "code": "rate_limit_exceeded"}, 429, "rate_limit_exceeded"),
        ({"message": "x", "code": "server_error"}, 500, "server_error"),
        ({"message": "x", "type": "overloaded_error"}, 529, "overloaded_error"),
        ({"message": "x", "code": 503, "status": "UNAVAILABLE"}, 503, "UNAVAILABLE"),
        ({"message": "x", "status": "RESOURCE_EXHAUSTED"}, 429, "RESOURCE_EXHAUSTED"),
        ({"message": "x", "code": 7}, None, None),
        ({"message": "x", "code": 200}, None, None),
        ({"message": "x", "code": True}, None, None),
        ("x", None, None),
    ],
)
def test_an_error_in_a_stream_has_the_status_it_names_or_stands_for(
    error: object, status: int | None, code: str | None
) -> None:
    failure = failure_of_event({"error": error})
    assert isinstance(failure, ProviderRefusedError)
    assert (failure.message, failure.status, failure.code) == ("x", status, code)


def test_an_error_that_says_nothing_still_says_that() -> None:
    assert failure_of_event({"error": {}}).message == "The provider reported an error: it did not say which."
    assert failure_of_event({"error": {"code": "boom"}}).message == "The provider reported an error: boom."
