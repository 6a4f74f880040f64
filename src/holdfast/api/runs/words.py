"""In whose words the runs API answers: ours, or those of a dialect (W1). A table, by the dialect's `run_words`.

Every answer is put together in our words first; a dialect adds its names to it. Sits on `encode` and `hermes`.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from holdfast.api.dialects import RunWordsName
from holdfast.api.runs.encode import RunEventsEncoder
from holdfast.api.runs.hermes import HermesWords
from holdfast.api.streams.encoder import StreamEncoder
from holdfast.errors import RequestError
from holdfast.ids import EventNumber, RunId


class RunWords(Protocol):
    """What the runs API says, by occasion."""

    def make_encoder(self, run: RunId, after: EventNumber) -> tuple[StreamEncoder, EventNumber]:
        """The encoder of an event stream, and after which event it reads."""
        ...

    def started(self, said: dict[str, Any], *, replayed: bool) -> dict[str, Any]:
        """A run was taken."""
        ...

    def run(self, said: dict[str, Any], now: float) -> dict[str, Any]:
        """A run as it is."""
        ...

    def stopped(self, said: dict[str, Any]) -> dict[str, Any]:
        """What came of a stop."""
        ...

    def answered(self, said: dict[str, Any], *, resolved: int) -> dict[str, Any]:
        """An approval was answered, for so many calls."""
        ...

    def steered(self, said: dict[str, Any]) -> dict[str, Any]:
        """A message was taken."""
        ...

    def refused(self, error: RequestError) -> RequestError:
        """An answer or a message that came at the wrong time."""
        ...


class OwnWords:
    """As it is."""

    def make_encoder(self, run: RunId, after: EventNumber) -> tuple[StreamEncoder, EventNumber]:
        """The log's own events."""
        return RunEventsEncoder(), after

    def started(self, said: dict[str, Any], *, replayed: bool) -> dict[str, Any]:
        """A header says whether it was there before."""
        return said

    def run(self, said: dict[str, Any], now: float) -> dict[str, Any]:
        """As it is."""
        return said

    def stopped(self, said: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return said

    def answered(self, said: dict[str, Any], *, resolved: int) -> dict[str, Any]:
        """The log says which."""
        return said

    def steered(self, said: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return said

    def refused(self, error: RequestError) -> RequestError:
        """As it is."""
        return error


WORDS: Final[Mapping[RunWordsName, RunWords]] = {"own": OwnWords(), "hermes": HermesWords()}
