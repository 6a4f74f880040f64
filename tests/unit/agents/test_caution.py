"""What makes a host a stranger, and what counts as having read a file (S17)."""

from typing import Any

import pytest

from holdfast.agents import caution
from holdfast.agents.caution import MAX_NAMED, PIECE_CHARACTERS, has_read, is_named, named_hosts
from holdfast.agents.request import RunRequest
from holdfast.config import AgentSettings
from holdfast.ids import CallId, RunId, SessionId
from holdfast.messages import ToolMessage, ToolSpec, user_says
from holdfast.tools.port import Heard


class Named:
    """Tools that are there by name, and never called."""

    def __init__(self, *specs: ToolSpec) -> None:
        self._specs = specs

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs


TOOLS: Any = Named(
    ToolSpec(name="helper", description="", parameters={}, reads=True),
    ToolSpec(name="recall", description="", parameters={}),
)


@pytest.mark.parametrize(
    ("name", "changes", "reads"),
    [
        ("read_file", {}, True),
        ("search_files", {}, True),
        ("read_file", {"failed": True}, False),
        ("terminal", {"failed": True}, True),
        ("mcp__notes__get", {}, True),
        ("mcp__notes__get", {"failed": True}, True),
        ("helper", {"failed": True}, True),
        ("recall", {}, False),
        ("write_file", {}, False),
        ("read_file", {"by_server": False}, False),
    ],
)
def test_what_may_have_seen_a_file_has_read_one(name: str, changes: dict[str, Any], reads: bool) -> None:
    """S17.b: what only failed to read has seen nothing; a client's tool of that name reads the client's files."""
    said = ToolMessage(**{"call_id": CallId("c1"), "name": name, "output": "x", "by_server": True, **changes})
    assert has_read([user_says("Go."), said], TOOLS) is reads


def request(**changes: Any) -> RunRequest:
    asked: dict[str, Any] = {"run": RunId("r"), "session": SessionId("s"), "surface": "chat", "model": "m", "input": ()}
    return RunRequest(**{**asked, **changes})


async def test_hosts_of_the_settings_and_of_who_asks_are_named_whatever_the_user_says() -> None:
    """S17.b: those that are private and allowed too; what another agent says names nobody."""
    settings = AgentSettings(
        prompt="See prompt.invalid.", known_hosts=("*.Known.invalid",), allow_private_hosts=("NAS.local",)
    )
    heard = Heard(has_read=False, hosts=frozenset({"heard.invalid"}))
    said = [user_says("Fetch https://user.invalid/")]
    known = {"prompt.invalid", "*.known.invalid", "nas.local"}
    assert await named_hosts(settings, request(), said) == known | {"user.invalid"}
    assert await named_hosts(settings, request(heard=heard), said) == known | {"heard.invalid"}


async def test_whoever_pastes_a_list_of_all_hosts_has_named_none_of_the_older_messages() -> None:
    """S17.b: so many are named as a person means; the settings' count always, and the newest message before others."""
    listed = " ".join(f"host{number}.invalid" for number in range(MAX_NAMED + 5))
    settings = AgentSettings(prompt="", known_hosts=("known.invalid",))
    named = await named_hosts(settings, request(), [user_says("see old.invalid"), user_says(listed)])
    assert len(named) == MAX_NAMED + 1
    assert "known.invalid" in named
    assert "old.invalid" not in named
    named = await named_hosts(settings, request(), [user_says(listed), user_says("see new.invalid")])
    assert len(named) == MAX_NAMED + 1
    few = await named_hosts(settings, request(), [user_says("see old.invalid"), user_says("see new.invalid")])
    assert few == {"known.invalid", "old.invalid", "new.invalid"}


async def test_a_long_text_names_its_hosts_wherever_it_is_cut_and_no_half_of_one() -> None:
    """S17.b: it is looked through in pieces, which end where there is space."""
    settings = AgentSettings(prompt="")
    words = "word " * (PIECE_CHARACTERS // 5 - 1)
    # The host stands across the place where a piece would end.
    text = words + "www.one.invalid " + words + "two.invalid " + words + "three.invalid"
    assert await named_hosts(settings, request(), [user_says(text)]) == {
        "www.one.invalid",
        "two.invalid",
        "three.invalid",
    }
    endless = "x" * (3 * PIECE_CHARACTERS) + ".evil.invalid named.invalid " + words * 3
    assert await named_hosts(settings, request(), [user_says(endless)]) == {"named.invalid"}


def test_a_pattern_names_what_it_matches_and_no_address_is_no_host() -> None:
    """S17.b: `*.example.org` has all that is below it."""
    named = frozenset({"*.example.org", "exact.invalid"})
    assert [is_named(host, named) for host in ("a.example.org", "exact.invalid", "example.org", "b.invalid")] == [
        True,
        True,
        False,
        False,
    ]
    assert is_named("", frozenset({"*"})) is False


@pytest.mark.parametrize(("one", "other", "kept"), [("auto", "ask", "ask"), ("deny", "ask", "deny")])
def test_of_two_policies_the_stricter_counts(one: Any, other: Any, kept: str) -> None:
    """S17.a, R12.a: whichever is named first."""
    assert caution.stricter(one, other) == caution.stricter(other, one) == kept
