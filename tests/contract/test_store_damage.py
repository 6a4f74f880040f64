"""Columns that hold what they should not: nothing becomes a 500, and everything beside them is as it was (J2, S7)."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import AgentSettings
from holdfast.store.sqlite.scalars import MAX_NUMBER
from holdfast.testing import Reply, tool_call
from tests.serving import CHAT, Answer, World, asking, serving
from tests.store.store_world import DAMAGED_VALUES, damage_column

RESPONSES, TALK = "/v1/responses", "/v1/conversations/talk"
ROWS = {
    "runs": "key = 1",
    "requests": "run = 1",
    "log": "run = 1",
    "idempotency": "1",
    "sessions": "id = 'damaged'",
    "messages": "id = 2",
    "responses": "run = 1",
    "conversations": "1",
    "memories": "1",
}
"""Of each table the row that is damaged."""
NUMBERS = {"created_at", "updated_at", "ended_at", "runs", "events"}
TEXTS = {"id", "title", "session_id", "model", "text"}


class Stored:
    """A world in which there is one of everything, and something beside it."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.file = folder / "holdfast.db"
        self.response = ""
        self.runs: list[str] = []

    async def fill(self) -> None:
        client = self.world.client
        key = {"Idempotency_Key": "k"}
        body = {"input": "q", "conversation": "talk", "session_id": None}
        self.response = (await client.post(RESPONSES, body)).json["id"]
        assert (await client.post(CHAT, asking("one", session_id="damaged"), **key)).status == 200
        assert (await client.post(CHAT, asking("two", session_id="whole"))).text == "Two."
        self.runs = [run["id"] for run in (await client.get("/v1/runs")).json["data"]][::-1]

    def place(self, table: str) -> str:
        """Where the row is that is damaged, whatever becomes of its columns."""
        if ROWS[table] == "1":
            return "1"
        with closing(sqlite3.connect(self.file)) as other:
            return f"rowid = {other.execute(f'SELECT rowid FROM {table} WHERE {ROWS[table]}').fetchone()[0]}"

    def columns(self, table: str) -> dict[str, Any]:
        """The columns of a table that can hold anything, with what the row has there."""
        with closing(sqlite3.connect(self.file)) as other:
            found = other.execute(f"PRAGMA table_info({table})").fetchall()
            # Not those that SQLite works out from others: nothing else can be in them.
            names = ", ".join(name for _, name, *_ in found)
            row = other.execute(f"SELECT {names} FROM {table} WHERE {ROWS[table]}").fetchone()
        return {
            name: value
            for (_, name, kind, _, _, key), value in zip(found, row, strict=True)
            if not (kind == "INTEGER" and key)
        }

    async def reads(self) -> list[tuple[str, Answer]]:
        """Everything that can be read."""
        paths = [
            *("/v1/sessions", "/v1/sessions?limit=1", "/v1/sessions?search=one", "/v1/sessions?before=damaged"),
            *("/v1/sessions/damaged", "/v1/sessions/damaged/messages", "/v1/sessions/whole/messages"),
            *("/v1/runs", "/v1/runs?session_id=damaged", "/v1/runs?status=completed"),
            *(f"/v1/runs/{run}{part}" for run in self.runs[:2] for part in ("", "/events")),
            *(f"{RESPONSES}/{self.response}{part}" for part in ("", "?stream=true", "/input_items")),
            *(TALK, f"{TALK}/items", "/health/detailed"),
        ]
        return [(path, await self.world.client.get(path)) for path in paths]


@asynccontextmanager
async def stored(folder: Path) -> AsyncIterator[Stored]:
    remember = Reply(calls=(tool_call("remember", text="Cats purr."),))
    script = [remember, *(Reply(text=text) for text in ("Kept.", "One.", "Two.")), *([Reply(text="More.")] * 50)]
    agent = AgentSettings(prompt="", tools=("memory",))
    async with serving(script, data_dir=folder, agent=agent) as world:
        made = Stored(world, folder)
        await made.fill()
        yield made


def of_the_wrong_kind(value: Any) -> list[tuple[str, Any]]:
    """Fields of an answer that hold what no client expects there."""
    found: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        for name, held in value.items():
            is_wrong = (name in NUMBERS and isinstance(held, str)) or (name in TEXTS and isinstance(held, float | bool))
            found += [(name, held)] if is_wrong else of_the_wrong_kind(held)
    elif isinstance(value, list):
        found = [wrong for held in value for wrong in of_the_wrong_kind(held)]
    return found


@pytest.mark.parametrize("table", ROWS)
async def test_whatever_a_column_holds_everything_can_be_read(tmp_path: Path, table: str) -> None:
    """J2.e, J1.b, S7.c: no 500, no field of the wrong kind, and what is not damaged is listed and shown as before."""
    async with stored(tmp_path) as made:
        place = made.place(table)
        for column, original in made.columns(table).items():
            for name, value in DAMAGED_VALUES.items():
                if not damage_column(made.file, table, column, value, place):
                    continue
                for path, answer in await made.reads():
                    where = f"{table}.{column} is {name}: {path}"
                    assert answer.status in (200, 400, 404), f"{where}: {answer.body!r}"
                    if answer.headers["content-type"].startswith("application/json"):
                        assert of_the_wrong_kind(answer.json) == [], where
                    if path == "/v1/sessions":
                        assert "whole" in {session["id"] for session in answer.json["data"]}, where
                    if path == "/v1/runs":
                        assert set(made.runs[1:]) <= {run["id"] for run in answer.json["data"]}, where
                    if path == "/v1/sessions/whole/messages":
                        assert [message["content"] for message in answer.json["data"]] == ["two", "Two."], where
                assert damage_column(made.file, table, column, original, place)


CHANGES: list[tuple[str, str, Any]] = [
    ("PATCH", "/v1/sessions/damaged", {"title": "new"}),
    ("POST", "/v1/sessions/damaged/fork", {}),
    ("POST", CHAT, asking("more", session_id="damaged")),
    ("POST", "/v1/runs", {"input": "more", "session_id": "damaged"}),
    ("POST", TALK, {"metadata": {"a": "b"}}),
    ("POST", f"{TALK}/items", {"items": [{"role": "user", "content": "z"}]}),
    ("POST", RESPONSES, {"input": "and?", "conversation": "talk"}),
    ("DELETE", TALK, None),
    ("DELETE", "/v1/sessions/damaged", None),
]


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("sessions", ("created_at", "updated_at", "title", "folded", "head", "runs")),
        ("messages", ("parent", "run", "created_at", "body")),
        ("responses", ("used",)),
        ("conversations", ("created_at", "head", "run", "kept")),
    ],
)
@pytest.mark.parametrize("kind", ["a text", "a blob", "nothing", "huge"])
async def test_whatever_a_column_holds_one_can_go_on_from_there(
    tmp_path: Path, table: str, columns: tuple[str, ...], kind: str
) -> None:
    """J2.a, J2.e, P5.a, P6.a, S7.c: renamed, copied, continued, deleted."""
    async with stored(tmp_path) as made:
        place, value = made.place(table), DAMAGED_VALUES[kind]
        for column in columns:
            before = made.columns(table)[column]
            assert damage_column(made.file, table, column, value, place)
            follows = {"input": "and?", "previous_response_id": made.response}
            for method, path, body in (("POST", RESPONSES, follows), *CHANGES[:-2]):
                answer = await made.world.client.send(method, path, body)
                assert answer.status in (200, 201, 202), f"{table}.{column}: {path}: {answer.body!r}"
            assert damage_column(made.file, table, column, before, place)
        assert damage_column(made.file, table, columns[0], value, place)
        for method, path, body in CHANGES[-2:]:
            assert (await made.world.client.send(method, path, body)).status == 200


async def test_a_use_of_a_response_that_no_count_can_follow_is_none(tmp_path: Path) -> None:
    """J2.e, P11.a: the largest number that is read: what follows it would be passed over, and so be given out twice."""
    async with stored(tmp_path) as made:
        assert damage_column(made.file, "responses", "used", MAX_NUMBER, made.place("responses"))
        for _ in range(3):
            answer = await made.world.client.post(RESPONSES, {"input": "and?", "previous_response_id": made.response})
            assert answer.status == 200, answer.body


@pytest.mark.parametrize("kind", ["a text", "a blob", "below 0"])
async def test_a_session_or_conversation_that_does_not_know_its_newest_message_is_not_begun_anew(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J2.e, P6.a: what was said in it is found all the same; and the log says what is damaged."""
    async with stored(tmp_path) as made:
        client = made.world.client
        for table, body in (
            ("sessions", asking("go on", session_id="damaged")),
            ("conversations", {"input": "go on", "conversation": "talk"}),
        ):
            assert damage_column(made.file, table, "head", DAMAGED_VALUES[kind], made.place(table))
            assert (await client.post(CHAT if table == "sessions" else RESPONSES, body)).status == 200
            sent = made.world.provider.requests[-1].raw.decode()
            assert ("One." if table == "sessions" else "Kept.") in sent and "go on" in sent
        assert "head of session damaged cannot be read" in caplog.text
        assert "head of conversation talk cannot be read" in caplog.text


async def test_a_session_that_does_not_say_when_it_was_used_is_named_and_listed_again_once_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J2.a, J2.e: the pages of the list lead past it."""
    async with stored(tmp_path) as made:
        client = made.world.client

        async def listed() -> set[str]:
            found: list[str] = []
            path = "/v1/sessions?limit=1"
            page = (await client.get(path)).json
            found += [session["id"] for session in page["data"]]
            while page["has_more"]:
                page = (await client.get(f"{path}&before={page['next']}")).json
                found += [session["id"] for session in page["data"]]
            assert len(found) == len(set(found))
            return set(found)

        whole = await listed()
        assert damage_column(made.file, "sessions", "updated_at", "x", made.place("sessions"))
        assert await listed() == whole - {"damaged"}
        assert "session damaged is not listed: its updated_at cannot be read" in caplog.text
        assert (await client.get("/v1/sessions/damaged")).json["updated_at"] == 0
        assert (await client.post(CHAT, asking("more", session_id="damaged"))).status == 200
        assert await listed() == whole


async def test_messages_that_are_each_others_parents_are_read_once(tmp_path: Path) -> None:
    """J2.e, S7.g: no path goes round for ever."""
    async with stored(tmp_path) as made:
        with closing(sqlite3.connect(made.file)) as other, other:
            node = other.execute("SELECT head FROM sessions WHERE id = 'damaged'").fetchone()[0]
            other.execute("UPDATE messages SET parent = ? WHERE id <= ?", (node, node))
        shown = (await made.world.client.get("/v1/sessions/damaged/messages")).json["data"]
        assert [message["content"] for message in shown] == ["One."]
