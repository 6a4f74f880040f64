"""The page tells an ending in the server's own words: its table has the sentence of every reason (R2)."""

from pathlib import Path
from typing import get_args

import pytest

from holdfast.outcomes import (
    ActionReason,
    Cancelled,
    CancelledReason,
    FailedReason,
    Incomplete,
    IncompleteReason,
    Outcome,
    outcome_message,
)

TABLE = (Path(__file__).parents[2] / "ui" / "src" / "lib" / "endings.ts").read_text(encoding="utf-8")
SAID: list[Outcome] = [
    *(Incomplete(reason=reason) for reason in get_args(IncompleteReason)),
    *(Cancelled(reason=reason) for reason in get_args(CancelledReason) if reason != "user"),
]


@pytest.mark.parametrize("outcome", SAID, ids=lambda outcome: outcome.reason)
def test_the_page_has_the_servers_sentence_for_an_ending(outcome: Outcome) -> None:
    """R1.b, R2.b: what the terminal and the API say of it."""
    assert f'"{outcome_message(outcome)}"' in TABLE


@pytest.mark.parametrize(
    "reason",
    [*get_args(IncompleteReason), *get_args(FailedReason), *get_args(CancelledReason), *get_args(ActionReason)],
)
def test_the_page_knows_every_reason(reason: str) -> None:
    """R2.a: none is left to a general word."""
    assert f"\n    {reason}: " in TABLE
