"""A database's password is told to the database, and to nobody else."""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.config import StoreSettings
from holdfast.errors import ConfigError, HoldfastError, StoreUnavailableError
from holdfast.settings import show_url, store_kind
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.migrate import read_steps
from tests.postgres_server import PostgresServer, postgres_server, query
from tests.store.store_world import run_record

SECRET = "pl-um%2Fpie"
PLAIN = "pl-um/pie"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server on 127.0.0.1 that wants a password."""
    with postgres_server(18, tcp=True, auth_host="scram-sha-256") as server:
        yield server


def with_user(server: PostgresServer, user: str, password: str, database: str = "postgres") -> str:
    return server.tcp_url(database).replace("postgresql://postgres@", f"postgresql://{user}:{password}@")


async def prepare(server: PostgresServer) -> None:
    await query(server.url(), f"DROP ROLE IF EXISTS bob; CREATE ROLE bob SUPERUSER LOGIN PASSWORD '{PLAIN}'")


async def test_the_password_in_the_url_opens_the_database_and_is_not_shown(guarded: PostgresServer) -> None:
    """The store says where it is, without it."""
    await prepare(guarded)
    store = await PostgresStore.open(with_user(guarded, "bob", SECRET))
    await store.create_run(run_record())
    assert store.url == guarded.tcp_url().replace("postgres@", "bob@")
    assert "pl-um" not in f"{store.url} {await store.check()}"
    await store.aclose()
    await query(guarded.url(), "DROP SCHEMA holdfast CASCADE")


@pytest.mark.parametrize(
    ("user", "password", "database", "said"),
    [
        ("bob", "pl-umb", "postgres", "the store does not let us in"),
        ("nobody", "pl-umb", "postgres", "the store does not let us in"),
        ("bob", SECRET, "pl-um-tree", "the store's database is not there"),
    ],
)
async def test_what_is_wrong_is_told_without_the_password(
    guarded: PostgresServer, caplog: pytest.LogCaptureFixture, user: str, password: str, database: str, said: str
) -> None:
    """S1.b: not in the error, not in its traceback, not in the log."""
    await prepare(guarded)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreUnavailableError, match=said) as raised:
        await PostgresStore.open(with_user(guarded, user, password, database))
    told = "".join(traceback.format_exception(raised.value)) + caplog.text + repr(raised.value)
    assert password not in told and PLAIN not in told
    assert user in told


async def test_a_server_and_doctor_say_what_is_wrong_without_the_password(
    guarded: PostgresServer, tmp_path: Path
) -> None:
    """S1.b, T2.b: one sentence, with what to do, and an exit code."""
    await prepare(guarded)
    for url, said in (
        (with_user(guarded, "bob", "pl-umb"), "see that user and password in store.url are right"),
        ("postgresql://bob:pl-umb@127.0.0.1:1/x", "see that PostgreSQL runs and store.url is right"),
        ("postgresql://bob:pl-umb", "a user with a password is followed by @ and the host"),
    ):
        for command in (["serve", "--port", "0"], ["doctor"]):
            done = run_holdfast(tmp_path, url, *command)
            assert done.returncode != 0
            assert said.lower() in done.stdout.lower() + done.stderr.lower()
            assert "pl-um" not in done.stdout + done.stderr
            assert "Traceback" not in done.stdout + done.stderr


async def test_doctor_looks_at_the_database_and_changes_nothing(guarded: PostgresServer, tmp_path: Path) -> None:
    """T2.b: which schema it has; none is made."""
    await prepare(guarded)
    await query(guarded.url(), "DROP SCHEMA IF EXISTS holdfast CASCADE")
    url = with_user(guarded, "bob", SECRET)
    assert "its schema will be made at the first start" in run_holdfast(tmp_path, url, "doctor").stdout
    assert await query(guarded.url(), "SELECT to_regnamespace('holdfast') IS NULL") == [(True,)]
    await (await PostgresStore.open(url)).aclose()
    done = run_holdfast(tmp_path, url, "doctor")
    assert f"{guarded.tcp_url().replace('postgres@', 'bob@')}, schema {read_steps()[-1].version}" in done.stdout
    assert "pl-um" not in done.stdout
    await query(guarded.url(), "DROP SCHEMA holdfast CASCADE")


def run_holdfast(folder: Path, url: str, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HOLDFAST_STORE_URL": url,
        "HOLDFAST_MODEL": "demo/demo",
    }
    program = [sys.executable, "-m", "holdfast", *command]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bob:pw@db.example.org/holdfast", "postgresql://bob@db.example.org/holdfast"),
        ("postgres://bob:pw@db:5433,other:5434/x?sslmode=require", "postgresql://bob@db:5433,other:5434/x"),
        ("postgresql:///x?host=/run/postgresql&user=bob&password=pw", "postgresql://bob@/x?host=/run/postgresql"),
        ("postgresql://%2Frun%2Fpg/x?password=pw", "postgresql://%2Frun%2Fpg/x"),
        ("postgresql://bob:p%40w@[::1]:5432/x", "postgresql://bob@[::1]:5432/x"),
        ("postgresql://host/?dbname=x&passfile=/secret&sslpassword=pw", "postgresql://host/x"),
        ("postgresql://", "postgresql:///"),
        ("sqlite:////srv/h.db", "sqlite:////srv/h.db"),
        ("memory:", "memory:"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    """Wherever people look."""
    assert show_url(url) == shown
    if "postgres" in url:
        assert store_kind(url) == "postgres"
        assert "pw" not in repr(StoreSettings(url=url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:s3cr@et@host/x",
        "postgresql://bob:s3cr/et@host/x",
        "postgresql://bob:123/s3cret@host/x",
        "postgresql://bob:s3cr?et@host/x",
        "postgresql://bob:s3cr#et@host/x",
        "postgresql://bob:s3cret",
        "postgresql://bob@host:s3cret/x",
        "postgresql://host:99999/x",
        "postgresql://host/x?sslmode=s3cret",
        "postgresql://host/x?s3cret",
        "postgresql://ho st/s3cret",
        "postgresql:host/s3cret",
        "postgresql://[::1/s3cret",
    ],
)
async def test_a_url_that_is_malformed_is_refused_and_not_repeated(url: str) -> None:
    """S8.c: nobody knows which part of it is the password."""
    with pytest.raises(ConfigError, match=r"store\.url must be") as raised:
        store_kind(url)
    assert "s3cr" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(HoldfastError) as opened:
        await PostgresStore.open(url)
    assert "s3cr" not in "".join(traceback.format_exception(opened.value))
