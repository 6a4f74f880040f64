"""What is told of an exception's words (C6)."""

import time

import pytest

from holdfast.guests.words import MAX_CHARACTERS, words_of


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", ""),
        ("kaputt", "kaputt"),
        ("The index\n  is not there.", "The index is not there."),
        ("no such key: 'city'", "no such key: 'city'"),
        ("HTTP 500 from 10.0.0.1:8080/v1/items?page=2", "HTTP 500 from 10.0.0.1:8080/v1/items?page=2"),
        ("max tokens exceeded: 4096", "max tokens exceeded: 4096"),
        ("password=hunter2", "password=[secret]"),
        ("the password is swordfish", "the password is [secret]"),
        ("bad login (password hunter2)", "bad login (password [secret]"),
        ("DB_PASSWORD: 'two words', again", "DB_PASSWORD: [secret], again"),
        ('{"api_key": "abc", "city": "Rome"}', '{"api_key": [secret], "city": "Rome"}'),
        ("Authorization: Bearer abc.def", "Authorization: [secret]"),
        ("sent Bearer abc.def to it", "sent Bearer [secret] to it"),
        ("key sk-proj-123456 is wrong", "key [secret] is wrong"),
        ("postgresql://ada:pw@db/x is away", "postgresql://[secret]@db/x is away"),
        ("401 for 9f86d081884c7d659a2feaa0c55ad015", "401 for [secret]"),
        ("AKIAIOSFODNN7EXAMPLE denied", "[secret] denied"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- bad", "[secret] bad"),
    ],
)
def test_an_exception_is_told_without_what_looks_like_a_secret(said: str, told: str) -> None:
    """C6.d."""
    assert words_of(RuntimeError(said)) == told


def test_a_long_message_is_cut_between_two_words() -> None:
    """C6.d: so that no beginning of a secret is left over."""
    told = words_of(RuntimeError("word " * 200 + "password=hunter2"))
    assert len(told) <= MAX_CHARACTERS + 2
    assert told.endswith("word …")


def test_an_exception_that_cannot_be_asked_says_nothing() -> None:
    """C6.d: its own code may fail too."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert words_of(Odd()) == ""


@pytest.mark.parametrize("piece", ["a", "a-", "token", "1a", "password ", "=/ ", "://", '"', "-----BEGIN A-----"])
def test_no_message_takes_long_to_be_looked_through(piece: str) -> None:
    """S7.g: it is read on the event loop."""
    words_of(RuntimeError("warm"))
    began = time.thread_time()
    words_of(RuntimeError(piece * 100_000))
    assert time.thread_time() - began < 0.1
