"""Many sets of tools as one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import ConfigError, ToolError
from holdfast.ids import RunId, SessionId
from holdfast.messages import ToolSpec
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.toolbox import Toolbox

CONTEXT = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope="session_1")


class Echo:
    """A set whose tools answer with what they are told to."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.closed = False
        self.cancelled = asyncio.Event()

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name=name, description="", parameters={"type": "object"}) for name in self.names]

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        return f"{name} {arguments.get('say', '')}"

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if name not in self.names:
            raise ToolError(f"{name} has gone")
        if arguments.get("wait"):
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if arguments.get("time_out"):
            raise TimeoutError("its own")
        await asyncio.sleep(arguments.get("sleep", 0))
        if arguments.get("fail"):
            raise ToolError("x" * arguments["fail"])
        return ToolResult(output=str(arguments.get("say", "")), failed=bool(arguments.get("failed")))

    async def aclose(self) -> None:
        self.closed = True


class FailsToClose(Echo):
    async def aclose(self) -> None:
        raise RuntimeError("no")


async def test_a_call_goes_to_the_set_that_has_the_tool() -> None:
    toolbox = Toolbox([Echo("a"), Echo("b")])
    assert [spec.name for spec in toolbox.specs()] == ["a", "b"]
    assert await toolbox.call("b", {"say": "hi", "failed": True}, CONTEXT) == ToolResult(output="hi", failed=True)
    assert toolbox.label("b", {"say": "hi\nthere"}) == "b hi there"


async def test_two_tools_of_one_name_are_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match="two tools named 'a'"):
        Toolbox([Echo("a"), Echo("b", "a")])


async def test_a_name_gained_later_does_not_take_another_tools_place() -> None:
    first, second = Echo("a"), Echo("b")
    toolbox = Toolbox([first, second])
    second.names = ("b", "a")
    assert [spec.name for spec in toolbox.specs()] == ["a", "b"]


async def test_an_unknown_tool_is_answered_with_the_known_ones_but_not_with_internal_ones() -> None:
    with pytest.raises(ToolError) as caught:
        await Toolbox([Echo("b", "_hidden", "a")]).call("c", {}, CONTEXT)
    assert caught.value.message == "There is no tool 'c'. The tools are: a, b."
    assert Toolbox([Echo("a")]).label("c", {}) == "c"


async def test_a_tool_that_has_gone_is_explained_by_its_set() -> None:
    echo = Echo("a")
    toolbox = Toolbox([echo])
    echo.names = ()
    assert toolbox.specs() == []
    with pytest.raises(ToolError, match="a has gone"):
        await toolbox.call("a", {}, CONTEXT)


async def test_errors_are_cut_like_output() -> None:
    with pytest.raises(ToolError) as caught:
        await Toolbox([Echo("a")], max_output_bytes=200).call("a", {"fail": 1_000}, CONTEXT)
    assert len(caught.value.message.encode()) <= 200
    assert "bytes left out" in caught.value.message


async def test_what_a_tool_says_and_its_label_are_cut() -> None:
    """R10.f: output size, whichever tool it is."""
    toolbox = Toolbox([Echo("a")], max_output_bytes=200)
    result = await toolbox.call("a", {"say": "x" * 1_000, "failed": True}, CONTEXT)
    assert len(result.output.encode()) <= 200
    assert "bytes left out" in result.output
    assert result.failed
    assert toolbox.label("a", {"say": "x" * 100}) == "a " + "x" * 77 + "…"


async def test_a_tool_has_its_overtime_and_a_time_out_of_its_own_is_not_taken_for_ours() -> None:
    """R10.b: a tool that keeps the limit itself is heard; one that does not is ended."""
    echo = Echo("a")
    toolbox = Toolbox([echo], tool_seconds=0.05, overtime_seconds=0.1)
    assert (await toolbox.call("a", {"sleep": 0.08, "say": "ended in time"}, CONTEXT)).output == "ended in time"
    with pytest.raises(ToolError, match=r"a took longer than 0\.05 seconds and was ended; what it had done stands"):
        await toolbox.call("a", {"wait": True}, CONTEXT)
    assert echo.cancelled.is_set()
    with pytest.raises(TimeoutError, match="its own"):
        await toolbox.call("a", {"time_out": True}, CONTEXT)


async def test_a_tool_gained_later_can_be_called() -> None:
    echo = Echo("a")
    toolbox = Toolbox([echo])
    echo.names = ("a", "b")
    assert await toolbox.call("b", {"say": "new"}, CONTEXT) == ToolResult(output="new")


async def test_cancelling_reaches_the_tool() -> None:
    echo = Echo("a")
    toolbox = Toolbox([echo])
    call = asyncio.ensure_future(toolbox.call("a", {"wait": True}, CONTEXT))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert echo.cancelled.is_set()


async def test_every_set_is_closed_even_if_one_fails_to() -> None:
    first, last = Echo("a"), Echo("c")
    with pytest.raises(RuntimeError):
        await Toolbox([first, FailsToClose("b"), last]).aclose()
    assert first.closed and last.closed
