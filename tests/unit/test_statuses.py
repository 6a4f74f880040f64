"""The states of a run have one list of names; who cannot import it is compared with it."""

import re
from pathlib import Path
from typing import get_args

from holdfast.cli.terminal.wording import STYLES
from holdfast.outcomes import LiveStatus, OutcomeName, RunStatus
from holdfast.runs.state import STATUS

WIRE = Path(__file__).parents[2] / "ui" / "src" / "lib" / "wire.ts"


def test_every_state_has_a_colour_in_the_terminal() -> None:
    """Also one that is new."""
    assert set(STYLES) == set(get_args(RunStatus))


def test_the_page_knows_the_same_states() -> None:
    """Its own list, in its own language, is the server's."""
    text = WIRE.read_text(encoding="utf-8")
    live = re.search(r"LIVE_STATUSES = \[(.*?)\]", text)
    ended = re.search(r"type OutcomeName = (.*?);", text)
    assert live is not None
    assert ended is not None
    assert re.findall(r'"(\w+)"', live[1]) == list(get_args(LiveStatus))
    assert re.findall(r'"(\w+)"', ended[1]) == list(get_args(OutcomeName))


def test_a_run_that_goes_on_is_called_by_one_of_them() -> None:
    """Whatever it is doing."""
    assert set(STATUS.values()) == set(get_args(LiveStatus))
