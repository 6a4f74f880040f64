"""Who may carry out which tool, and asking (R12). Sits on settings; knows no HTTP."""

import asyncio
from fnmatch import fnmatchcase

from holdfast.config import Approval
from holdfast.ids import CallId


class ApprovalPolicy:
    """`auto`, `ask` or `deny`, for all tools or by name."""

    def __init__(self, policy: Approval | dict[str, Approval]) -> None:
        self._by_name: dict[str, Approval] = {"*": policy} if isinstance(policy, str) else dict(policy)

    def of(self, tool: str) -> Approval:
        """The policy of a tool: its own name first, then the longest pattern that matches, else `auto`."""
        if tool in self._by_name:
            return self._by_name[tool]
        matching = [pattern for pattern in self._by_name if fnmatchcase(tool, pattern)]
        return self._by_name[max(matching, key=len)] if matching else "auto"


class Questions:
    """The calls of one run that wait for an answer."""

    def __init__(self) -> None:
        self._open: dict[CallId, asyncio.Future[bool]] = {}

    async def ask(self, call: CallId, seconds: float) -> bool | None:
        """Wait for an answer; None: nobody answered in time."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._open[call] = answer
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._open[call]

    def answer(self, call: CallId | None, approved: bool) -> CallId | None:
        """Answer a call, or the only one that waits; None: there is nothing to answer."""
        if call is None and len(self._open) == 1:
            call = next(iter(self._open))
        if call is None or call not in self._open or self._open[call].done():
            return None
        self._open[call].set_result(approved)
        return call
