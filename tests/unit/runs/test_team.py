"""What a key may have and what is made of it on the way (S12-S14), without HTTP."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from holdfast.agents.request import RunRequest
from holdfast.api.keys.schema import KeyBody, make_record
from holdfast.config import KeySettings, PriceSettings
from holdfast.errors import RequestError
from holdfast.messages import AssistantMessage, Text, user_says
from holdfast.runs.team.audit import MAX_ADDRESSES, OTHERS, REFUSED_SECONDS, Audit
from holdfast.runs.team.caller import THE_ADMIN, Caller
from holdfast.runs.team.declared import declared_keys
from holdfast.runs.team.keyring import KeyGoneError, Keyring
from holdfast.runs.team.reserve import OUTPUT_TOKENS, make_allowance
from holdfast.store.accounts import KEPT, KeyLimits, KeyRecord
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.upstream.port import Options
from tests.unit.runs.test_resume import make_request

NOW = 1_000.0
LIMITS = KeyLimits(
    requests_per_minute=1, concurrent_runs=2, tokens_per_day=300_000, cost_per_day=4.5, stored_bytes=5_000_000
)
ALICE = KeyRecord(name="alice", hash="a" * 64, created_at=NOW, limits=LIMITS)
PRICES = {"m": PriceSettings(input=1.0, output=10.0)}


def asking(**changes: Any) -> RunRequest:
    return make_request(asked_by="alice", input=(user_says("i" * 400),), **changes)


async def a_keyring(*stored: KeyRecord, declared: tuple[KeyRecord, ...] = ()) -> Keyring:
    store = MemoryStore()
    for key in stored:
        await store.put_key(key)
    keyring = Keyring(store, ManualClock(now=NOW), api_key="boss", declared=declared, prices=PRICES)
    await keyring.open()
    return keyring


def test_what_is_set_aside_for_a_run_is_what_it_is_shown_and_may_say() -> None:
    """S12.m: its history, its instructions and its question, as long as its answer may be, and what that costs."""
    history = (user_says("h" * 800), AssistantMessage(parts=(Text(text="a" * 1200),)))
    request = asking(history=history, instructions="s" * 40, options=Options(max_output_tokens=50))
    allowance = make_allowance(Caller(ALICE), request, PRICES, NOW)
    assert allowance is not None
    assert allowance.tokens == 600 + 10 + 50 and allowance.cost == pytest.approx((610 + 500) / 1_000_000)
    assert (allowance.key, allowance.owner, allowance.now, allowance.limits) == ("alice", "alice", NOW, LIMITS)
    assert allowance.prices is PRICES and KEPT * 400 < allowance.stored_bytes < KEPT * 600
    usual = make_allowance(Caller(ALICE), asking(), PRICES, NOW)
    assert usual is not None and usual.tokens == 100 + OUTPUT_TOKENS


def test_only_who_has_a_limit_of_cost_needs_a_price_and_who_has_none_of_any_kind_nothing() -> None:
    """S12.l, S13.d: a run whose cost nobody knows is refused where cost is limited."""
    with pytest.raises(RequestError, match="price") as refused:
        make_allowance(Caller(ALICE), asking(model="unknown"), PRICES, NOW)
    assert (refused.value.status, refused.value.code) == (403, "price_unknown")
    free = Caller(replace(ALICE, limits=replace(LIMITS, cost_per_day=None, stored_bytes=None)))
    allowance = make_allowance(free, asking(model="unknown"), PRICES, NOW)
    assert allowance is not None and (allowance.cost, allowance.stored_bytes) == (0.0, 0)
    assert make_allowance(Caller(replace(ALICE, limits=KeyLimits())), asking(), PRICES, NOW) is None
    assert make_allowance(THE_ADMIN, asking(), PRICES, NOW) is None


async def test_what_an_agent_asks_of_another_keeps_within_the_day_and_is_no_request() -> None:
    """S12.m: tokens and cost are bounded, how many runs there are is not; for a key that is gone nothing begins."""
    keyring = await a_keyring(ALICE)
    within = keyring.allowance_within(asking())
    assert within is not None and within.limits == KeyLimits(tokens_per_day=300_000, cost_per_day=4.5)
    assert within.key == "alice" and keyring.allowance_within(replace(asking(), asked_by="")) is None
    expired = await a_keyring(replace(ALICE, expires_at=NOW))
    with pytest.raises(KeyGoneError):
        expired.allowance_within(asking())


def test_a_key_has_all_that_was_said_of_it_wherever_it_was_made() -> None:
    """S12.b, S12.d: in the settings and by a request; every role, model and limit."""
    said = {"role": "viewer", "models": ("a", "b/*"), "expires_at": "2027-01-31T12:00:00Z", **asdict(LIMITS)}
    (declared,) = declared_keys({"alice": KeySettings(hash="a" * 64, **said)})
    made = make_record(KeyBody(name="alice", **said), "a" * 64, NOW)
    assert made == KeyRecord(
        name="alice",
        hash="a" * 64,
        created_at=NOW,
        role="viewer",
        models=("a", "b/*"),
        expires_at=1_801_396_800.0,
        limits=LIMITS,
    )
    assert declared == replace(made, created_at=0.0, is_declared=True)


async def test_what_the_settings_say_of_a_key_holds_whatever_is_stored_under_its_name() -> None:
    """S12.d: it was made before it was declared."""
    declared = replace(ALICE, role="viewer", is_declared=True)
    keyring = await a_keyring(ALICE, replace(ALICE, name="bob", hash="b" * 64), declared=(declared,))
    assert [(key.name, key.role, key.is_declared) for key in keyring.keys] == [
        ("alice", "viewer", True),
        ("bob", "user", False),
    ]


def test_a_key_may_use_a_model_by_any_of_its_names_and_no_other() -> None:
    """S12.i: by a name as it is, or by how it begins; an admin of the team only looks after everything."""
    caller = Caller(replace(ALICE, models=("openai/*", "writer")))
    assert caller.may_use(["openai/small"]) and caller.may_use(["x", "writer"])
    assert not any(caller.may_use([name]) for name in ("openai", "Writer", "writer2", "azure/openai/small", ""))
    assert not Caller(replace(ALICE, models=())).may_use(["writer"]) and Caller(ALICE).may_use(["any"])
    boss = Caller(replace(ALICE, role="admin"))
    assert (boss.owner, boss.is_admin, boss.is_viewer, boss.name) == ("", True, False, "alice")


async def test_of_wrong_keys_one_of_an_address_a_minute_is_written_and_how_many_were_left_out() -> None:
    """S14.b: each minute begins with its first; beyond many addresses they are told together."""
    store, clock = MemoryStore(), ManualClock(now=NOW)
    audit = Audit(store, clock)

    async def written() -> list[dict[str, Any]]:
        await audit.flush()
        entries = await store.read_audit(0, 10_000)
        return [entry.details for entry in entries if entry.action == "key.refused"]

    for _ in range(3):
        audit.refused("a")
    audit.refused("b")
    first = [{"address": "a"}, {"address": "b"}]
    assert await written() == await written() == first
    await clock.advance(REFUSED_SECONDS - 1)
    audit.refused("a")
    assert await written() == first
    await clock.advance(1)
    told = [*first, {"address": "a", "left_out": 3}]
    assert await written() == told
    audit.refused("a")
    assert await written() == [*told, {"address": "a"}]
    for number in range(MAX_ADDRESSES + 4):
        audit.refused(f"address {number}")
    entries = await written()
    assert len(entries) == len(told) + MAX_ADDRESSES + 1 and entries[-1] == {"address": OTHERS}
    await clock.advance(REFUSED_SECONDS)
    assert {"address": OTHERS, "left_out": 4} in await written()
