"""Who may carry out which tool (R12). Sits on settings; knows no HTTP."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from holdfast.config import ApprovalMode


class ApprovalPolicy:
    """`auto`, `ask` or `deny`, for all tools or by name."""

    def __init__(self, policy: ApprovalMode | dict[str, ApprovalMode]) -> None:
        self._by_name: dict[str, ApprovalMode] = {"*": policy} if isinstance(policy, str) else dict(policy)

    def of(self, tool: str, own: ApprovalMode = "auto") -> ApprovalMode:
        """The policy of a tool: its own name first, then the longest pattern that matches, else `auto`.

        What the tool wants of itself (`own`) counts where it is stricter, unless it is named.
        """
        if tool in self._by_name:
            return self._by_name[tool]
        matching = [pattern for pattern in self._by_name if fnmatchcase(tool, pattern)]
        found = self._by_name[max(matching, key=len)] if matching else "auto"
        return max(found, own, key=_STRICTNESS.index)


_STRICTNESS: Final[Sequence[ApprovalMode]] = ("auto", "ask", "deny")
