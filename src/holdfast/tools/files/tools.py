"""Reading, writing, finding and searching the files of one workspace.

Nothing here leaves the workspace (see workspace.py), blocks the event loop, or shows more than a model can use at once.
Above workspace and search, below the toolbox.
"""

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final, assert_never

from msgspec import Meta

from holdfast.errors import ToolError
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import Arguments, make_spec, parse_arguments
from holdfast.tools.files import search
from holdfast.tools.files.own_files import OwnFiles
from holdfast.tools.files.workspace import Workspace
from holdfast.tools.output import cut
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.subprograms import run_subprogram
from holdfast.tools.threads import in_thread

MAX_FILE_BYTES: Final = 10_000_000
MAX_ENTRIES: Final = 1_000
LIST_SECONDS: Final = 10.0
SEARCH_SECONDS: Final = 20.0

WorkspacePath = Annotated[str, Meta(description="Relative to the workspace.")]
Directory = Annotated[str, Meta(description="Relative to the workspace; by default all of it.")]
Hidden = Annotated[bool, Meta(description="Include names that begin with a dot, and directories like node_modules.")]


class ReadFile(Arguments, frozen=True, kw_only=True):
    """Read a text file of the workspace. Long files come in pages: the last line says how to read on."""

    path: WorkspacePath
    offset: Annotated[int, Meta(ge=1, description="The line to begin at, from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="How many lines at most.")] = 2_000


class WriteFile(Arguments, frozen=True, kw_only=True):
    """Write a text file of the workspace, whole: creates it and its directories, or replaces what was there."""

    path: WorkspacePath
    content: str


class EditFile(Arguments, frozen=True, kw_only=True):
    """Replace a piece of text in a file of the workspace. It must occur exactly once, unless replace_all is set."""

    path: WorkspacePath
    old_text: Annotated[str, Meta(description="The text to replace, exactly as it is, white space included.")]
    new_text: str
    replace_all: bool = False


class ListFiles(Arguments, frozen=True, kw_only=True):
    """List a directory of the workspace; names of directories end with a slash."""

    path: Directory = "."
    glob: Annotated[str, Meta(description="Only what matches, at any depth: *.py, src/**/*.ts.")] = ""
    recursive: bool = False
    hidden: Hidden = False


class SearchFiles(Arguments, frozen=True, kw_only=True):
    """Search the text files of the workspace for a regular expression, line by line. Answers path:line: text."""

    pattern: Annotated[str, Meta(description="A Python regular expression.")]
    path: Directory = "."
    glob: Annotated[str, Meta(description="Only in files that match: *.py, src/**/*.ts.")] = ""
    ignore_case: bool = False
    hidden: Hidden = False
    max_matches: Annotated[int, Meta(ge=1, le=1_000)] = 200


FileArguments = ReadFile | WriteFile | EditFile | ListFiles | SearchFiles
_READING: Final = frozenset({"read_file", "list_files", "search_files"})
_KINDS: Final[dict[str, type[FileArguments]]] = {
    "read_file": ReadFile,
    "write_file": WriteFile,
    "edit_file": EditFile,
    "list_files": ListFiles,
    "search_files": SearchFiles,
}


class FileTools:
    """The five tools for files."""

    def __init__(
        self,
        workspace: Path,
        *,
        own_files: OwnFiles | None = None,
        max_output_bytes: int = 50_000,
        search_seconds: float = SEARCH_SECONDS,
    ) -> None:
        self._workspace = Workspace(workspace, own_files)
        self._search_seconds = search_seconds
        self._changing = threading.Lock()
        """Models ask for several edits of one file at once; without it the last would undo the others."""
        self._page_bytes = max(max_output_bytes - 500, 500)
        """Room is left for the line that says how to go on, so that a page is never cut in its middle."""
        self._specs = tuple(make_spec(name, kind, repeatable=name in _READING) for name, kind in _KINDS.items())

    def specs(self) -> Sequence[ToolSpec]:
        """The five tools."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """`read_file README.md`, `search_files TODO`."""
        about = arguments.get("pattern") or arguments.get("path") or arguments.get("glob") or ""
        return f"{name} {about}".rstrip()

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Carry one out.

        Raises:
            ToolError: it could not be done.
        """
        asked, approved = parse_arguments(_KINDS, name, arguments), context.approved
        match asked:
            case ReadFile():
                output = await in_thread(lambda stop: self._read(asked, approved))
            case WriteFile():
                output = await in_thread(lambda stop: self._write(asked, approved))
            case EditFile():
                output = await in_thread(lambda stop: self._edit_alone(asked, approved))
            case ListFiles():
                output = await in_thread(lambda stop: self._list(asked, stop))
            case SearchFiles():
                output = await self._search(asked, approved)
            case _:
                assert_never(asked)
        return ToolResult(output=output)

    async def caution(self, name: str, arguments: dict[str, Any]) -> str:
        """S17: what is likely to be secret needs somebody's word; names of files are none."""
        path = arguments.get("path")
        if name == "list_files" or not isinstance(path, str):
            return ""
        secret = await in_thread(lambda stop: self._workspace.secret_at(path))
        return f"{secret[:200]} is likely to be secret, or to act by itself." if secret else ""

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    def _read(self, asked: ReadFile, approved: bool) -> str:
        lines = _lines(_shown(self._workspace.read(asked.path, MAX_FILE_BYTES, approved=approved), asked.path))
        if not lines:
            return f"[{asked.path} is empty]"
        if asked.offset > len(lines):
            raise ToolError(f"{asked.path} has only {len(lines):,} lines.")
        page: list[str] = []
        room = self._page_bytes
        for line in lines[asked.offset - 1 : asked.offset - 1 + asked.limit]:
            room -= len(line.encode("utf-8", "replace")) + 1
            if room < 0 and page:
                break
            page.append(line)
        last = asked.offset - 1 + len(page)
        text = cut("\n".join(page), self._page_bytes)
        if len(page) == len(lines):
            return text
        onward = f"; pass offset={last + 1} to read on" if last < len(lines) else ""
        return f"{text}\n[lines {asked.offset:,}-{last:,} of {len(lines):,}{onward}]"

    def _write(self, asked: WriteFile, approved: bool) -> str:
        content = _encoded(asked.content)
        with self._changing:
            new = self._workspace.write(asked.path, content, approved=approved)
        return f"{'Created' if new else 'Replaced'} {asked.path}: {len(content):,} bytes."

    def _edit_alone(self, asked: EditFile, approved: bool) -> str:
        with self._changing:
            return self._edit(asked, approved)

    def _edit(self, asked: EditFile, approved: bool) -> str:
        if not asked.old_text:
            raise ToolError("old_text is empty. Use write_file to write a whole file.")
        try:
            text = self._workspace.read(asked.path, MAX_FILE_BYTES, approved=approved).decode()
        except UnicodeDecodeError:
            raise ToolError(f"{asked.path} is not UTF-8 text; editing it would damage it.") from None
        old, new = asked.old_text, asked.new_text
        if old not in text and "\r\n" in text and "\r\n" not in old:
            # The file has the line breaks of Windows, which models do not write.
            old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        count = text.count(old)
        if count == 0:
            raise ToolError(_not_found(text, asked))
        places = _places(text, old)
        if count > 1 and not asked.replace_all:
            raise ToolError(
                f"old_text occurs {count} times in {asked.path} (lines {places}). "
                "Include more of what is around it, or set replace_all."
            )
        if old == new:
            raise ToolError("old_text and new_text are the same; nothing was changed.")
        self._workspace.write(asked.path, _encoded(text.replace(old, new)), approved=approved)
        return f"Edited {asked.path}: replaced {count} time{'s' if count > 1 else ''}, at line {places}."

    def _list(self, asked: ListFiles, stop: threading.Event) -> str:
        directory, name = self._workspace.open_place(asked.path)
        try:
            if name != ".":
                return asked.path
            found: list[str] = []
            cut_short = ""
            deadline = time.monotonic() + LIST_SECONDS
            recursive = asked.recursive or bool(asked.glob)
            refused = self._workspace.own_files.look()
            walk = search.walk(directory, recursive=recursive, hidden=asked.hidden, refused=refused)
            with closing(walk) as entries:
                for path, _, _, is_directory in entries:
                    if recursive and is_directory and search.is_too_deep(path):
                        cut_short = search.TOO_DEEP
                    if stop.is_set() or time.monotonic() > deadline:
                        cut_short = f"[stopped after {LIST_SECONDS:g} seconds; there is more]"
                        break
                    if asked.glob and not search.matches(path, asked.glob):
                        continue
                    if len(found) == MAX_ENTRIES:
                        cut_short = f"[the first {MAX_ENTRIES:,} only; narrow the path or the glob]"
                        break
                    found.append(path + "/" if is_directory else path)
        finally:
            os.close(directory)
        if not found:
            return cut_short or ("Nothing matches." if asked.glob else "[the directory is empty]")
        return cut("\n".join(sorted(found)), self._page_bytes) + (f"\n{cut_short}" if cut_short else "")

    async def _search(self, asked: SearchFiles, approved: bool) -> str:
        directory, name = await in_thread(
            lambda stop: self._workspace.open_place(asked.path, approved=approved),
            discard=lambda place: os.close(place[0]),
        )
        below = "" if asked.path in (".", "./") else asked.path.rstrip("/") + "/"
        question = {
            "directory": directory,
            "name": name,
            "shown": below if name == "." else asked.path,
            "pattern": asked.pattern,
            "glob": asked.glob,
            "ignore_case": asked.ignore_case,
            "hidden": asked.hidden,
            "below": below,
            "secrets": approved,
            "max_matches": asked.max_matches,
            "refused": (await in_thread(lambda stop: self._workspace.own_files.look())).plain(),
        }
        try:
            ran = await run_subprogram(
                search.__file__,
                json.dumps(question),
                seconds=self._search_seconds,
                max_output_bytes=self._page_bytes,
                descriptors=(directory,),
            )
        finally:
            os.close(directory)
        if ran.code is None:
            narrower = "narrow the pattern, path or glob"
            return f"{ran.output}[the search was stopped after {self._search_seconds:g} seconds; {narrower}]"
        if ran.code != 0:
            raise ToolError(ran.problem or f"The search failed with exit code {ran.code}.")
        return ran.output.rstrip("\n") or "No matches."


def _shown(content: bytes, path: str) -> str:
    """The text of a file; what is not UTF-8 is replaced."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    if b"\0" in content[:8192]:
        raise ToolError(f"{path} is a binary file of {len(content):,} bytes; it is not shown.")
    return content.decode("utf-8-sig", "replace")


def _encoded(text: str) -> bytes:
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolError("The text has lone surrogates in it, which no file can hold as UTF-8.") from None
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"The text is too large: {len(content):,} bytes, and at most {MAX_FILE_BYTES:,} are written.")
    return content


def _lines(text: str) -> list[str]:
    """Lines end at line feeds only: other separators would make the numbers differ from every other tool's."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def _places(text: str, piece: str, most: int = 10) -> str:
    """The numbers of the lines on which a piece of text begins."""
    numbers: list[str] = []
    at = text.find(piece)
    while at >= 0 and len(numbers) < most:
        numbers.append(str(text.count("\n", 0, at) + 1))
        at = text.find(piece, at + len(piece))
    return ", ".join(numbers) + (", …" if at >= 0 else "")


def _not_found(text: str, asked: EditFile) -> str:
    first = next((line.strip() for line in asked.old_text.split("\n") if line.strip()), None)
    near = [str(number) for number, line in enumerate(text.split("\n"), start=1) if line.strip() == first][:5]
    hint = f" Its first line stands at line {', '.join(near)}, but white space or what follows differs." if near else ""
    return f"old_text was not found in {asked.path}.{hint} Read the file again; it must match exactly."
