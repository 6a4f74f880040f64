"""What one scope remembers no other can recall (C14)."""

from typing import Any

import msgspec
import pytest

from holdfast.errors import StoreUnavailableError, ToolError
from holdfast.ids import RunId, SessionId
from holdfast.store.port import Store
from holdfast.tools.memory import LongTermMemory, MemoryTools
from holdfast.tools.port import ToolContext, ToolResult


class Note(msgspec.Struct):
    text: str


class Notes:
    """A memory that finds what contains the query."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Note]] = {}
        self.broken = False

    async def remember(self, scope: str, text: str) -> Note:
        if self.broken:
            raise StoreUnavailableError("The disk is full.")
        self.kept.setdefault(scope, []).append(Note(text))
        return Note(text)

    async def recall(self, scope: str, query: str, limit: int) -> list[Note]:
        if self.broken:
            raise StoreUnavailableError("The disk is gone.")
        return [note for note in self.kept.get(scope, []) if query in note.text][::-1][:limit]


async def use(memory: LongTermMemory, scope: str, name: str, **arguments: Any) -> ToolResult:
    context = ToolContext(run=RunId("run_1"), session=SessionId("session_1"), memory_scope=scope)
    return await MemoryTools(memory).call(name, arguments, context)


async def test_what_is_remembered_is_recalled_in_its_scope_alone() -> None:
    notes = Notes()
    assert await use(notes, "anna", "remember", text="The cat is grey.") == ToolResult(output="Remembered.")
    await use(notes, "anna", "remember", text="The dog is black.")
    assert (await use(notes, "anna", "recall", query="cat")).output == "- The cat is grey."
    assert (await use(notes, "anna", "recall")).output == "- The dog is black.\n- The cat is grey."
    assert (await use(notes, "anna", "recall", limit=1)).output == "- The dog is black."
    assert (await use(notes, "bert", "recall", query="cat")).output == "Nothing is remembered about that."
    for number in range(20):
        await use(notes, "bert", "remember", text=f"{number}" + "x" * 9_000)
    assert (await use(notes, "bert", "recall")).output.count("- ") == 10, "without a limit"


async def test_what_could_not_be_kept_is_not_said_to_be() -> None:
    notes = Notes()
    notes.broken = True
    with pytest.raises(ToolError, match="not available now: The disk is full"):
        await use(notes, "anna", "remember", text="x")
    with pytest.raises(ToolError, match="not available now: The disk is gone"):
        await use(notes, "anna", "recall")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("remember", {"text": ""}),
        ("remember", {"text": "x" * 10_001}),
        ("remember", {}),
        ("recall", {"limit": 0}),
        ("recall", {"limit": 51}),
        ("recall", {"query": "x" * 1_001}),
    ],
)
async def test_what_does_not_fit_is_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="Wrong arguments"):
        await use(Notes(), "anna", name, **arguments)


def test_the_store_is_a_memory() -> None:
    """Checked by the type checker: any store will do."""

    def accepts(store: Store) -> MemoryTools:
        return MemoryTools(store)

    assert accepts is not None


def test_labels() -> None:
    tools = MemoryTools(Notes())
    assert tools.label("remember", {"text": "The cat is grey."}) == "remember The cat is grey."
    assert tools.label("recall", {"query": "cat\n" + "x" * 100}) == "recall cat " + "x" * 68 + "…"
    assert tools.label("recall", {}) == "recall"
