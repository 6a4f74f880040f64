"""Requests and refusals at their edges: headers, pages, forms, and what a refusal says about trying again."""

from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from holdfast.api.chat_completions.upload import LOOK_AT_FILES, parse_upload
from holdfast.api.failures import problem_of_outcome
from holdfast.api.problems import NEVER_RETRY, Problem, problem_of
from holdfast.api.requests.body import convert
from holdfast.api.requests.headers import MAX_WARNING_CHARACTERS, add_warnings, check_header_text, header_text
from holdfast.api.requests.paging import PageRequest, cut_page, parse_page, query_number
from holdfast.api.runs.schema import ApprovalBody
from holdfast.errors import HandedOverError, LimitReachedError, NotFoundError, RequestError, StoreUnavailableError
from holdfast.outcomes import Cancelled, Failed, Incomplete
from tests.serving import CHAT, asking, serving


def made(query: str = "", **headers: str) -> Request:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "query_string": query.encode(), "headers": raw})


def test_a_header_that_is_blank_is_not_there() -> None:
    """C14.a: nobody is in the session of a name that was left blank."""
    assert [header_text(made(a=value), "A") for value in ("", " \t", " x ")] == [None, None, "x"]
    assert header_text(made(), "a") is None


@pytest.mark.parametrize("character", ["\n", "\x7f", "\u2028", "\u2029", "\ud800"])
def test_what_would_break_a_line_is_no_part_of_a_name(character: str) -> None:
    """C14.b: in a header, or in a log."""
    with pytest.raises(RequestError) as refused:
        check_header_text("X", f"a{character}b")
    assert (refused.value.param, refused.value.code) == ("X", "invalid_value")


def test_a_name_may_be_so_long() -> None:
    """C14.b: and no longer."""
    assert check_header_text("X", "a" * 256) == "a" * 256
    with pytest.raises(RequestError):
        check_header_text("X", "a" * 257)


def test_warnings_stand_behind_each_other_and_end_somewhere() -> None:
    """C11.c: what was left out before is still told; a header that is too long would be refused on its way."""
    headers = {"W": "First."}
    add_warnings(headers, "W", ["Second.", "Third."])
    assert headers == {"W": "First. Second. Third."}
    add_warnings(headers, "W", ["x" * 5000])
    assert headers["W"] == ("First. Second. Third. " + "x" * 5000)[:MAX_WARNING_CHARACTERS]
    add_warnings(headers, "V", [])
    assert "V" not in headers


class Inner(msgspec.Struct):
    a: int


class Outer(msgspec.Struct):
    inner: Inner
    many: list[Inner] = []


@pytest.mark.parametrize(
    ("value", "at", "param"),
    [
        ({}, "", "inner"),
        ({"inner": {}}, "", "inner.a"),
        ({"inner": {}}, "body", "body.inner.a"),
        ({"inner": {"a": "x"}}, "body", "body.inner.a"),
        ({"inner": {"a": 1}, "many": [{"a": 1}, {}]}, "", "many[1].a"),
        ([], "body", "body"),
    ],
)
def test_what_does_not_fit_is_named_where_it_stands(value: Any, at: str, param: str) -> None:
    """C12.b: however deep."""
    with pytest.raises(RequestError) as refused:
        convert(value, Outer, at=at)
    assert (refused.value.param, refused.value.code) == (param, "invalid_value")
    assert refused.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("query", "number"), [("", 20), ("limit=", 20), ("limit=1", 1), ("limit=100", 100), ("limit=101", 100)]
)
def test_a_page_is_as_large_as_is_said_up_to_a_limit(query: str, number: int) -> None:
    """P10.a: a limit that is left empty is none."""
    assert query_number(made(query), "limit", default=20, low=1, high=100) == number
    assert parse_page(made(query)).limit == number


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "limit=1.5"])
def test_a_limit_that_is_none_is_refused(query: str) -> None:
    """P10.a: by name."""
    with pytest.raises(RequestError) as refused:
        parse_page(made(query))
    assert (refused.value.status, refused.value.param) == (400, "limit")


def test_a_list_has_more_until_its_last_item_was_shown() -> None:
    """P10.a: also where the last page is full."""
    items = [{"id": name} for name in "abcd"]
    pages = [
        cut_page(items, PageRequest(limit=2, order="asc")),
        cut_page(items, PageRequest(limit=2, order="asc", after="b")),
        cut_page(items, PageRequest(limit=2, after="b")),
        cut_page(items, PageRequest(limit=2, after="a")),
    ]
    assert [("".join(item["id"] for item in p["data"]), p["first_id"], p["last_id"], p["has_more"]) for p in pages] == [
        ("ab", "a", "b", True),
        ("cd", "c", "d", False),
        ("a", "a", "a", False),
        ("", "", "", False),
    ]
    with pytest.raises(NotFoundError) as unknown:
        cut_page(items, PageRequest(after="x"))
    assert (unknown.value.status, unknown.value.param, unknown.value.code) == (404, "after", "item_not_found")


@pytest.mark.parametrize(
    ("error", "status", "kind", "headers"),
    [
        (RequestError("no"), 400, "invalid_request_error", {}),
        (RequestError("no", status=503, code="x"), 503, "server_error", {"Retry-After": "1"}),
        (RequestError("no", status=502, code="x"), 502, "server_error", NEVER_RETRY),
        (HandedOverError("gone"), 503, "server_error", {"Retry-After": "1"}),
        (StoreUnavailableError("full"), 503, "server_error", {"Retry-After": "1"}),
        (LimitReachedError("full", limit="l", retry_after_seconds=7), 429, "rate_limit_error", {"Retry-After": "7"}),
    ],
)
def test_a_refusal_says_whether_and_when_to_try_again(
    error: RequestError, status: int, kind: str, headers: dict[str, str]
) -> None:
    """S7.a, R10.a: in its status, its type and its headers."""
    problem = problem_of(error)
    assert (problem.status, problem.type, dict(problem.headers)) == (status, kind, headers)


def failed(status: int, retry: float | None = None, code: str | None = None) -> Failed:
    return Failed(reason="upstream_error", message="no", status=status, retry_after_seconds=retry, code=code)


@pytest.mark.parametrize(
    ("outcome", "status", "code", "headers"),
    [
        (failed(413, code="too_large"), 413, "too_large", NEVER_RETRY),
        (failed(429, 1.2), 429, "rate_limit_error", {**NEVER_RETRY, "Retry-After": "2"}),
        (failed(429, 0.0), 429, "rate_limit_error", {**NEVER_RETRY, "Retry-After": "0"}),
        (failed(418), 502, "agent_incomplete", NEVER_RETRY),
        (Cancelled(reason="shutdown"), 502, "agent_incomplete", {}),
        (Failed(reason="internal", message="no"), 500, "internal_error", {}),
        (Incomplete(reason="max_output_tokens"), 502, "agent_incomplete", NEVER_RETRY),
    ],
)
def test_a_run_without_an_answer_is_an_error_that_says_when_to_try_again(
    outcome: Any, status: int, code: str, headers: dict[str, str]
) -> None:
    """C5.d, C6.a: a second that has begun is a second to wait."""
    problem = problem_of_outcome(outcome, has_text=False, tools_ran=False)
    assert problem is not None
    assert (problem.status, problem.code, dict(problem.headers)) == (status, code, headers)
    ran = problem_of_outcome(outcome, has_text=False, tools_ran=True)
    assert isinstance(ran, Problem)
    assert ran.headers["x-should-retry"] == "false", "its tools would do their work twice"


def form(*parts: tuple[str, bytes]) -> bytes:
    return (
        b"".join(b"--b\r\nContent-Disposition: form-data; " + h.encode() + b"\r\n\r\n" + c + b"\r\n" for h, c in parts)
        + b"--b--\r\n"
    )


def test_a_form_says_what_its_fields_say_and_names_files_without_their_folders() -> None:
    """W2: a field that is left empty is none."""
    body = form(
        ('name="message"', b" "),
        ('name="session_id"', b"  "),
        ('name="model"', b" m "),
        ('name="files"; filename="C:\\\\docs\\\\a b.txt"', b"text"),
        ('name="files"; filename="../x/y.txt"', b"more"),
    )
    assert parse_upload("multipart/form-data; boundary=b", body) == {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": LOOK_AT_FILES},
                    {"type": "text", "text": "The file a b.txt:\n\ntext"},
                    {"type": "text", "text": "The file y.txt:\n\nmore"},
                ],
            }
        ],
    }


@pytest.mark.parametrize(("field", "value"), [("n", 0), ("n", 2), ("max_tokens", 0), ("max_completion_tokens", 0)])
async def test_a_number_that_means_nothing_is_refused_by_name(field: str, value: int) -> None:
    """C12.b: zero answers, and an answer of no tokens, are none."""
    async with serving() as world:
        answer = await world.client.post(CHAT, asking(**{field: value}))
        assert (answer.status, answer.error["param"]) == (400, field)
        assert not world.provider.requests


@pytest.mark.parametrize(
    ("body", "approved"),
    [
        ({"approved": False}, False),
        ({"approved": True}, True),
        ({"decision": "deny"}, False),
        ({"decision": "approved"}, True),
        ({"choice": " Once "}, True),
        ({"choice": "deny", "decision": "approve"}, False),
        ({"choice": "always", "approved": False}, False),
    ],
)
def test_an_answer_is_a_yes_or_a_no_in_whichever_words(body: dict[str, Any], approved: bool) -> None:
    """R12.a, W1.f: the plainest of them counts."""
    assert convert(body, ApprovalBody).is_approved is approved


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "approved"),
        ({"choice": ""}, "choice"),
        ({"choice": "maybe"}, "choice"),
        ({"approved": True, "by": "nobody"}, "by"),
    ],
)
def test_what_is_neither_a_yes_nor_a_no_is_refused(body: dict[str, Any], param: str) -> None:
    """R12.a, C12.b: by name."""
    with pytest.raises(RequestError) as refused:
        _ = convert(body, ApprovalBody).is_approved
    assert (refused.value.status, refused.value.param) == (400, param)
