"""What of the machine a command in a sandbox may see beside its workspace: programs, and what they need to run.

An allow list, since nobody can list all places that secrets are in. Below the sandboxes; knows none of them.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import ToolError
from holdfast.tools.files.own_files import OwnFiles

SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are, when nobody says."""
SYSTEM: Final = ("/usr", "/opt", "/nix", "/gnu")
LINKED: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Directories, or links into /usr."""
_OF_ETC: Final = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version"),
    *("environment.d", "fonts", "gai.conf", "gitconfig", "group", "host.conf", "hosts", "inputrc", "java*", "ld.so.*"),
    *("locale.*", "localtime", "login.defs", "magic", "mime.types", "networks", "nsswitch.conf", "os-release"),
    *("passwd", "perl", "pki/ca-trust", "pki/tls/certs", "profile", "profile.d", "protocols", "python3*"),
    *("resolv.conf", "rpc", "services", "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo"),
    *("timezone", "vimrc", "wgetrc", "xdg"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What a sandbox is about."""

    workspace: Path
    home: str = ""
    more: Sequence[str] = ()
    """To be read beside the system: `agent.sandbox_paths`."""
    own_files: OwnFiles
    path: str = "/usr/local/bin:/usr/bin:/bin"
    """Where programs are looked for."""

    @property
    def real_workspace(self) -> str:
        """Where the workspace is, links followed.

        Raises:
            ToolError: there is none, or it is the server's own.
        """
        real = os.path.realpath(self.workspace)
        if not os.path.isdir(real):
            raise ToolError("The workspace, or the shell, is not there.")
        if real in self.own_files.existing():
            raise ToolError("The workspace belongs to the server that runs you (its data); nothing is run there.")
        return real

    def real_more(self) -> list[str]:
        """Those of `more` that are there."""
        return [real for path in self.more if os.path.exists(real := os.path.realpath(os.path.expanduser(path)))]

    def visible_path(self, workspace: str) -> str:
        """What of `path` can be seen: a shell that found a program elsewhere could not start it."""
        seen = [*SYSTEM, *LINKED, workspace, *self.real_more()]
        folders = [os.path.realpath(folder) for folder in self.path.split(":") if folder.startswith("/")]
        return ":".join(dict.fromkeys(f for f in folders if any(is_below(f, place) for place in seen))) or SYSTEM_PATH

    def hidden(self, seen: Iterable[str]) -> list[str]:
        """What belongs to the server within what is seen."""
        own = self.own_files.existing()
        return sorted({path for path in own for place in seen if is_below(path, place)})


def is_below(path: str, directory: str) -> bool:
    """Is a real path a real directory, or below it?"""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def etc_files() -> Iterator[str]:
    """What of /etc programs need, and no more: there are keys there too."""
    for pattern in _OF_ETC:
        yield from sorted(glob.glob(f"/etc/{pattern}"))
