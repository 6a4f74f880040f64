"""A way through a proxy (CONNECT): a socket to the proxy becomes one to the host behind it.

`http1` sits above and has made the socket. Knows no TLS: what passes the tunnel is not its business.
"""

import asyncio
import re
import socket
from typing import Final

from holdfast.upstream.proxies import Proxy, join_address

MAX_HEAD_BYTES: Final = 64 * 1024
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r\n")


class ProxyError(OSError):
    """There is no way through the proxy; says why."""


async def open_tunnel(sock: socket.socket, host: str, port: int, proxy: Proxy) -> None:
    """Ask a proxy, over a socket to it, for a way to a host. If there is none, or nobody waits for it, it is closed.

    Raises:
        ProxyError: it said no, or what it said is not HTTP.
        OSError: the connection to it was lost.
    """
    # A name in other letters is asked for in those of the DNS.
    name = host if host.isascii() else host.encode("idna").decode()
    loop, target = asyncio.get_running_loop(), join_address(name, port)
    permit = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    try:
        await loop.sock_sendall(sock, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{permit}\r\n".encode("latin-1"))
        head = b""
        while b"\r\n\r\n" not in head:
            data = await loop.sock_recv(sock, 4096)
            head += data
            if not data or len(head) > MAX_HEAD_BYTES:
                raise ProxyError(f"the proxy {proxy.address} did not answer as a proxy does")
        _check_answer(head, proxy)
    except BaseException:
        sock.close()
        raise


def _check_answer(head: bytes, proxy: Proxy) -> None:
    found = _STATUS.match(head)
    # Nobody behind it speaks before he is spoken to, so that nothing may follow its head.
    if found is None or (found[1][:1] == b"2" and not head.endswith(b"\r\n\r\n")):
        raise ProxyError(f"the proxy {proxy.address} did not answer as a proxy does")
    if found[1][:1] != b"2":
        reason = (found[2] or b"").decode("latin-1").strip()[:200]
        raise ProxyError(f"the proxy {proxy.address} answered {found[1].decode()} {reason}".rstrip())
