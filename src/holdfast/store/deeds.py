"""Which events are on the disk before anybody is told of them; the same in every store that has one (R8).

Sits on the vocabulary.
"""

from typing import Final

from holdfast.events import ApprovalAnswered, ApprovalAsked, RunEnded, Steered, ToolFinished, ToolStarted

DEEDS: Final = frozenset({ToolStarted, ToolFinished, ApprovalAsked, ApprovalAnswered, Steered, RunEnded})
"""Events of which a power failure may not leave the effect and take the record. What a model says is none: it is cut
off by such a failure anyway, at this token or a few before it."""
