"""Where a run's agent goes on after its server was gone: what its log says it has said, done and used (R15).

Made by `runs.resume` from the log alone, taken by the loop. Pure values. Sits on the vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.events import ApprovalAnswered
from holdfast.ids import CallId
from holdfast.messages import GO_ON, AssistantMessage, Message, Text, UserMessage, user_says
from holdfast.turns import TurnFold


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """What has been done of a run; nothing, for one that begins."""

    said: Sequence[Message] = ()
    """What the run has added to the conversation, and its model has to see again."""
    is_cut: bool = False
    """The last of it is a turn that broke off."""
    was_cut: bool = False
    """So had the turn before, which that one went on from; what was said to the run since stands between them."""
    turn: TurnFold | None = None
    """The last turn, if its model had ended it and nothing was done about it yet; it is no part of `said`."""
    is_dropped: bool = False
    """The receipts of that turn's half calls, if it has any, are written."""
    calls: AssistantMessage | None = None
    """Of a turn of which some calls have results in `said`: the message with all its calls."""
    finished: frozenset[CallId] = frozenset()
    """Calls that need nothing more."""
    begun: frozenset[CallId] = frozenset()
    """Calls that were being carried out, and may be carried out again."""
    decisions: Mapping[CallId, ApprovalAnswered] = field(default_factory=dict)
    """What was approved or denied."""
    waiting: Mapping[CallId, float] = field(default_factory=dict)
    """Calls that wait for somebody's word, and how many seconds more."""
    ready: frozenset[CallId] = frozenset()
    """The client's calls that it has been told of."""
    attempt: int = 1
    """Which one begins: 2 or more, if its server was gone."""
    turns: int = 0
    tool_calls: int = 0
    output_bytes: int = 0
    has_text: bool = False
    has_answered: bool = False
    """Has any turn come to its end? Until then a forced tool is still forced."""

    @property
    def goes_on_from_words(self) -> bool:
        """Has the model to go on in the middle of an answer?"""
        return user_says(GO_ON) in self.shown()

    def shown(self) -> list[Message]:
        """What the model is shown of it."""
        said = list(self.said)
        if not self.is_cut:
            return said
        if said and isinstance(said[-1], AssistantMessage) and not _words(said[-1]):
            # Thoughts without what they led to are left out: providers refuse them.
            said.pop()
        since: list[Message] = []
        while self.was_cut and said and isinstance(said[-1], UserMessage):
            since.insert(0, said.pop())
        match said:
            case [*before, AssistantMessage() as last] if words := _words(last):
                # Its words as they were seen.
                return [*before, AssistantMessage(parts=words), user_says(GO_ON), *since]
            case _:
                return [*said, *since]


def _words(said: AssistantMessage) -> tuple[Text, ...]:
    return tuple(part for part in said.parts if isinstance(part, Text))


BEGINNING: Final = ResumePoint()
"""Nothing has been done."""
