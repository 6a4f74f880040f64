"""The one directory that file tools may touch, and how nothing leads out of it.

A path is walked name by name, each opened relative to the directory before it and never through a symbolic link; links
are read and their targets walked the same way. So what was checked is what is opened, whatever is swapped meanwhile.
What belongs to the server is refused on the way (see own_files.py). Everything here blocks: call it in a thread. Below
the file tools; knows no tool.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.errors import ToolError
from holdfast.tools.files.own_files import OwnFiles
from holdfast.tools.files.search import is_likely_secret

MAX_LINKS: Final = 40
MAX_DIRECTORIES: Final = 250
"""On the way to a file: each takes a descriptor while the path is walked."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Non-blocking, so that a FIFO put in a file's place cannot hold the thread."""
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LikelySecretError(ToolError):
    """It is likely to be secret."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path[:200]} is likely to be secret, or to act by itself, and nobody has approved of its use."
        )
        self.path = path


class Workspace:
    """A directory and what is below it."""

    def __init__(self, root: Path, own_files: OwnFiles | None = None) -> None:
        self.root = root.absolute()
        self.own_files = own_files or OwnFiles()
        self._real_root = os.path.realpath(root)

    def read(self, path: str, max_bytes: int, *, approved: bool = False) -> bytes:
        """The content of a regular file; of one that is likely to be secret only where that was approved.

        Raises:
            ToolError: it is not there, not readable, no regular file, too large, or outside.
        """
        with self._errors(path), self._walk(path, approved=approved) as (directory, name):
            descriptor = open_regular(name, directory)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                self.own_files.check(path, status)
                size = status.st_size
                content = b"" if size > max_bytes else file.read(max_bytes + 1)
            # Files of /proc have no size, and others grow while they are read.
            if size > max_bytes or len(content) > max_bytes:
                raise ToolError(f"{path} is too large: {size:,} bytes, and at most {max_bytes:,} are read.")
            return content

    def write(self, path: str, content: bytes, *, approved: bool = False) -> bool:
        """Put a file there whole or not at all, with its old mode if there was one; True: it is new.

        Raises:
            ToolError: it cannot be written, is no regular file, or is outside.
        """
        with self._errors(path), self._walk(path, make_parents=True, approved=approved) as (directory, name):
            if name == "." or path.endswith("/"):
                raise IsADirectoryError
            try:
                old = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                old = None
            if old is not None:
                self.own_files.check(path, old)
                _require_regular(old)
                if not os.access(name, os.W_OK, dir_fd=directory):  # a rename would not ask
                    raise PermissionError
            temporary = f".holdfast-{secrets.token_hex(8)}.tmp"
            descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=directory)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if old is not None:
                        with suppress(PermissionError):  # only root may give files away
                            os.fchown(descriptor, old.st_uid, old.st_gid)
                        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                    file.write(content)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            return old is None

    def open_place(self, path: str, *, approved: bool = True) -> tuple[int, str]:
        """A directory's descriptor, which the caller closes, and a name in it: `.`, or the file that the path names.

        Raises:
            ToolError: it is not there, or outside.
        """
        with self._errors(path), self._walk(path, approved=approved) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            self.own_files.check(path, status)
            if stat.S_ISDIR(status.st_mode):
                return os.open(name, _DIRECTORY, dir_fd=directory), "."
            return os.dup(directory), name

    def secret_at(self, path: str) -> str:
        """S17: what a path leads to, relative to the workspace, if that is likely to be secret; else nothing."""
        try:
            with self._errors(path), self._walk(path, approved=False):
                return ""
        except LikelySecretError as error:
            return error.path
        except ToolError:  # whoever uses the path will be told
            return ""

    @contextmanager
    def _walk(self, path: str, *, approved: bool, make_parents: bool = False) -> Iterator[tuple[int, str]]:
        """The directory that holds what the path names, and the name there, which is no symbolic link (or was none)."""
        trail: list[str] = []
        pending = self._parts_below_root(path, path)
        opened = [os.open(self._real_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        links = 0
        try:
            self.own_files.check(path, os.fstat(opened[0]))
            name = "."
            while pending:
                part = pending.pop()
                if part == "..":
                    if len(opened) == 1:
                        raise _outside(path)
                    os.close(opened.pop())
                    trail.pop()
                    continue
                self.own_files.check_name(path, opened[-1], part)
                target = _link_target(part, opened[-1])
                if target is not None:
                    links += 1
                    if links > MAX_LINKS:
                        raise ToolError(f"{path} goes through too many symbolic links.")
                    if target.startswith("/"):
                        trail.clear()
                        while len(opened) > 1:
                            os.close(opened.pop())
                    pending += self._parts_below_root(target, path)
                elif pending:
                    if len(opened) > MAX_DIRECTORIES:
                        raise ToolError(f"{path[:200]}… goes through more than {MAX_DIRECTORIES} directories.")
                    if not approved and is_likely_secret("/".join([*trail, part])):
                        raise LikelySecretError("/".join([*trail, part, *reversed(pending)]))
                    opened.append(_enter(part, opened[-1], make_parents))
                    trail.append(part)
                    self.own_files.check(path, os.fstat(opened[-1]))
                else:
                    name = part
            if not approved and is_likely_secret("/".join([*trail, name])):
                raise LikelySecretError("/".join([*trail, name]))
            yield opened[-1], name
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _parts_below_root(self, path: str, asked: str) -> list[str]:
        """The names of a path, last first; of an absolute one those that follow the workspace's own."""
        if path.startswith("/"):
            for root in (self._real_root, str(self.root)):
                if path == root or path.startswith(root.rstrip("/") + "/"):
                    path = path[len(root) :]
                    break
            else:
                raise _outside(asked)
        return [part for part in reversed(path.split("/")) if part not in ("", ".")]

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """What the system says, in words for the model."""
        if not path or "\0" in path:
            raise ToolError("The path is empty or has a NUL character in it.")
        try:
            yield
        except UnicodeEncodeError:
            raise ToolError("The path is not valid Unicode.") from None
        except OSError as error:
            raise ToolError(f"{path[:200]}: {_REASONS.get(type(error)) or error.strerror or error}.") from None


def open_regular(name: str, directory: int) -> int:
    """Open a regular file for reading, and nothing that could block or act: no device, FIFO or socket."""
    _require_regular(os.stat(name, dir_fd=directory, follow_symlinks=False))
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        _require_regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise ToolError("That is no regular file (a device, FIFO, socket or link) and is left alone.")


def _link_target(name: str, directory: int) -> str | None:
    """Where a symbolic link points; None: it is none, or there is nothing."""
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # not a link
            return None
        raise


def _enter(name: str, directory: int, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory)
    return os.open(name, _DIRECTORY, dir_fd=directory)


def _outside(path: str) -> ToolError:
    return ToolError(f"{path[:200]} is outside the workspace. Use a path relative to the workspace.")


_REASONS: Final[dict[type[OSError], str]] = {
    FileNotFoundError: "there is no such file or directory",
    IsADirectoryError: "this is a directory, not a file",
    NotADirectoryError: "a part of the path is not a directory",
    PermissionError: "permission denied",
}
