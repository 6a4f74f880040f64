"""Which address is listened on: who can reach it (S4), and the sockets themselves.

Above: serve and doctor. Below: the operating system. A name is resolved once, and what was judged is what is bound.
"""

import errno
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from holdfast.config import ServerSettings
from holdfast.errors import ConfigError, ListenError

Address = tuple[socket.AddressFamily, str]

MIN_KEY_CHARACTERS: Final = 16
"""What others can reach can be tried again and again; a shorter key is guessed."""


def resolve(host: str) -> Sequence[Address]:
    """The addresses behind a host; an empty one is every address.

    Raises:
        ConfigError: there is no such host.
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(bare or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f'server.host is "{host}", and there is no such address here.') from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def is_loopback(addresses: Sequence[Address]) -> bool:
    """Whether only this machine can reach all of them."""
    return all(_is_loopback(address) for _, address in addresses)


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def is_strong(api_key: str) -> bool:
    """Whether a key is long enough for what others can reach."""
    return len(api_key.strip()) >= MIN_KEY_CHARACTERS


def require_key(server: ServerSettings, addresses: Sequence[Address]) -> None:
    """S4, S18: what others can reach needs a key that cannot be guessed.

    Raises:
        ConfigError: it has none; says how to set one.
    """
    if is_loopback(addresses) or is_strong(server.api_key):
        return
    lack = f"the API key has fewer than {MIN_KEY_CHARACTERS} characters" if server.api_key else "no API key is set"
    raise ConfigError(
        f"{server.host or 'Every address'} can be reached from other machines, and {lack}, so anyone there "
        "could use this server and its tools.\n"
        "Set a key: export HOLDFAST_API_KEY=$(openssl rand -hex 32)\n"
        'or [server] api_key = "..." in holdfast.toml; or listen on this machine alone: --host 127.0.0.1'
    )


def open_listeners(addresses: Sequence[Address], port: int, *, shared: bool = False) -> list[socket.socket]:
    """Bound sockets, one for each address, all on one port; port 0 takes a free one.

    Args:
        addresses: where.
        port: which port.
        shared: other processes of this user may bind the same (R18), and each gets its share of the connections.

    Raises:
        ListenError: the port is taken or may not be used.
    """
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in addresses:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, port))
        except OSError as error:
            listener.close()
            # A name such as localhost may have an IPv6 address on a machine without IPv6.
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = error
                continue
            for other in listeners:
                other.close()
            raise ListenError(_explain(error, address, port)) from error
        listener.setblocking(False)
        port = listener.getsockname()[1]
        listeners.append(listener)
    if not listeners:
        raise ListenError(f"This machine has no address {addresses[0][1]}.") from missing
    return listeners


def _explain(error: OSError, address: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {address} is in use. Stop what uses it, or choose another: --port {port + 1}"
    if error.errno == errno.EACCES:
        return f"Port {port} on {address} may not be used by this user. Choose one above 1023: --port 8642"
    return f"Port {port} on {address} cannot be listened on: {error.strerror}."


def make_url(host: str, port: int) -> str:
    """Where a browser on this machine finds the server."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare in ("", "0.0.0.0", "::"):
        bare = "127.0.0.1" if bare != "::" else "::1"
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"
