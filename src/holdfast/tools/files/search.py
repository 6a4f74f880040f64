"""Walking a tree and searching its files: used by the file tools, and run by them as a program of its own.

A regular expression can take for ever, and while it does Python runs nothing else; so the searching is done in a
process that can be killed (see tools/subprograms.py). This module therefore imports only the standard library.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

SKIPPED_DIRECTORIES: Final = frozenset({"node_modules", "__pycache__", "venv"})
"""Not entered unless asked for, like all whose names begin with a dot."""
MAX_DEPTH: Final = 100
"""Directories further down are named and not entered: each on the way takes a descriptor."""
TOO_DEEP: Final = f"[directories more than {MAX_DEPTH} deep are not entered; pass one of them as the path]"
MAX_SEARCHED_BYTES: Final = 5_000_000
MAX_LINE_CHARACTERS: Final = 2_000
"""Longer lines are searched this far."""
SHOWN_CHARACTERS: Final = 300
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


Identity = tuple[int, int]
"""A device and the number of a file there: what a file is, whatever it is called."""


def identity_of(status: os.stat_result) -> Identity:
    """What a file is."""
    return status.st_dev, status.st_ino


_SECRET_DIRECTORIES: Final = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".gcloud", ".config/gcloud", ".config/gh"),
    *(".git/hooks", ".git/config", ".password-store"),
)
_SECRET_NAMES: Final = (
    *(".env", ".env.*", "*.env", ".envrc", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12"),
    *("*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.tfstate", "*.tfvars", ".netrc", "_netrc", ".npmrc"),
    *(".pypirc", ".pgpass", ".my.cnf", ".git-credentials", ".htpasswd", ".dockercfg", ".vault-token", "kubeconfig"),
    *("credentials", "service-account*.json", "client_secret*.json"),
    *(f"{name}.{end}" for name in ("secrets", "credentials") for end in ("json", "toml", "ini", "yml", "yaml")),
)
_NOT_SECRET: Final = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.pub")


def is_likely_secret(path: str) -> bool:
    """S17: is what a path names likely to be secret, or to act by itself? Relative to the workspace, links followed."""
    path = f"/{path.casefold().strip('/')}"
    if any(f"{directory}/" in f"{path}/" for directory in (f"/{name}" for name in _SECRET_DIRECTORIES)):
        return True
    name = path.rpartition("/")[2]
    if any(fnmatchcase(name, pattern) for pattern in _NOT_SECRET):
        return False
    return any(fnmatchcase(name, pattern) for pattern in _SECRET_NAMES)


class Identities:
    """Files and directories that are left out: by what they are, and by what they would be called."""

    def __init__(
        self,
        *,
        places: Iterable[Sequence[int]] = (),
        names: Iterable[tuple[int, int, str]] = (),
        devices: Iterable[int] = (),
    ) -> None:
        self._places = {(device, number) for device, number in places}
        self._names = {(device, number, name.casefold()) for device, number, name in names}
        self._devices = set(devices)

    def has(self, status: os.stat_result) -> bool:
        """Is this one of them?"""
        return status.st_dev in self._devices or identity_of(status) in self._places

    def has_name(self, directory: os.stat_result, name: str) -> bool:
        """Is what has this name in a directory, or would have it, one of them?"""
        return (*identity_of(directory), name.casefold()) in self._names

    def plain(self) -> dict[str, Any]:
        """For the program: what it is made from again."""
        return {"places": list(self._places), "names": list(self._names), "devices": list(self._devices)}


def walk(
    directory: int, *, recursive: bool, hidden: bool, refused: Identities
) -> Generator[tuple[str, int, str, bool], None, None]:
    """What is below a directory: relative path, descriptor of the parent, name, and whether it is a directory.

    Symbolic links are named but not followed. Sorted, a directory before what is in it. What is refused is not named.
    """
    for root, directories, files, descriptor in os.fwalk(".", dir_fd=directory):
        if refused.has(os.fstat(descriptor)):
            directories.clear()
            continue
        prefix = "" if root == "." else root.removeprefix("./") + "/"
        below = {name for name in directories if hidden or not name.startswith(".")}
        for name in sorted([*directories, *files]):
            if (hidden or not name.startswith(".")) and not _is_refused(name, descriptor, refused):
                yield prefix + name, descriptor, name, name in below
        enters = recursive and root.count("/") < MAX_DEPTH
        directories[:] = sorted(below if hidden else below - SKIPPED_DIRECTORIES) if enters else []


def is_too_deep(path: str) -> bool:
    """Is a directory, by its path as `walk` has it, not entered because of its depth?"""
    return path.count("/") >= MAX_DEPTH


def _is_refused(name: str, directory: int, refused: Identities) -> bool:
    try:
        return refused.has(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except OSError:  # gone meanwhile
        return True


def matches(path: str, pattern: str) -> bool:
    """Does a relative path match a glob? One without a slash is for names at any depth; `**` spans directories.

    All ways to match are followed at once, so that no pattern takes long.
    """
    globs = pattern.removeprefix("./").strip("/").split("/")
    if len(globs) == 1:
        globs.insert(0, "**")
    reached = _past_stars({0}, globs)
    for part in path.split("/"):
        step = set()
        for at in reached:
            if at < len(globs) and globs[at] == "**":
                step.add(at)
            elif at < len(globs) and fnmatchcase(part, globs[at]):
                step.add(at + 1)
        reached = _past_stars(step, globs)
    return len(globs) in reached


def _past_stars(reached: set[int], globs: list[str]) -> set[int]:
    """`**` also stands for no directory at all."""
    for at in sorted(reached):
        while at < len(globs) and globs[at] == "**":
            at += 1
            reached.add(at)
    return reached


def search_file(name: str, directory: int, pattern: re.Pattern[str], refused: Identities) -> Iterator[tuple[int, str]]:
    """The lines of a text file that match, with their numbers; nothing for what is no readable text file."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except OSError:  # gone, a link, not ours to read: nothing is found there
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SEARCHED_BYTES or refused.has(status):
            return
        content = file.read(MAX_SEARCHED_BYTES)
    if b"\0" in content[:8192]:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
        found = pattern.search(line[:MAX_LINE_CHARACTERS])
        if found:
            # A match far along a line is shown with what is around it.
            start = max(found.start() - SHOWN_CHARACTERS // 2, 0) if len(line) > SHOWN_CHARACTERS else 0
            yield number, line[start : start + SHOWN_CHARACTERS].strip()


def _files(asked: dict[str, Any], refused: Identities) -> Iterator[tuple[str, int, str]]:
    """The files to search: what they are called, the descriptor of their directory, and their name in it.

    Says at the end that there were directories it did not enter.
    """
    if asked["name"] != ".":
        yield asked["shown"], asked["directory"], asked["name"]
        return
    has_deeper = False
    left_out = 0
    below = walk(asked["directory"], recursive=True, hidden=asked["hidden"], refused=refused)
    for path, parent, name, is_directory in below:
        if is_directory:
            has_deeper = has_deeper or is_too_deep(path)
        elif is_likely_secret(asked["below"] + path) and not asked["secrets"]:
            left_out += 1
        elif not asked["glob"] or matches(path, asked["glob"]):
            yield asked["shown"] + path, parent, name
    if left_out:
        sys.stdout.write(
            f"[{left_out} files are likely to be secret and were left out; each can be named as the path]\n"
        )
    if has_deeper:
        sys.stdout.write(f"{TOO_DEEP}\n")


def main() -> int:
    """Search as the JSON in the first argument says, and print what is found as it is found."""
    asked = json.loads(sys.argv[1])
    try:
        pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        sys.stderr.write(f"The pattern is not a regular expression: {error}.")
        return 2
    refused = Identities(**asked["refused"])
    left = asked["max_matches"]
    for shown, parent, name in _files(asked, refused):
        for number, line in search_file(name, parent, pattern, refused):
            if left == 0:
                sys.stdout.write(f"[stopped at {asked['max_matches']:,} matches; narrow the pattern, path or glob]\n")
                return 0
            left -= 1
            sys.stdout.buffer.write(f"{shown}:{number}: {line}\n".encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
