"""Proxies on the way to providers, as the environment names them: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.

Read as other clients read them, in lower case first. Pure data: `providers` gives each provider the proxy on its way,
`transport` goes through it. No I/O.
"""

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import ConfigError

_PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(?:(?P<name>[^:\[\]]+)|\[(?P<v6>[^\]]+)\])(?::(?P<port>[0-9]{1,5}))?")
"""An entry of NO_PROXY that may have a port; another one is an IPv6 address without brackets."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where to connect instead. Its password never shows when it is printed."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)
    """The value of `Proxy-Authorization`; empty: it asks for none."""

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return join_address(self.host, self.port)


def join_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def find_proxy(url: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy on the way to a URL; None: there is none, or NO_PROXY leaves the host out.

    Raises:
        ConfigError: the variable does not name a proxy that can be used; the message names it, and not its value,
            which may hold a password.
    """
    target = urlsplit(url)
    host, port = (target.hostname or "").rstrip("."), target.port or _PORTS.get(target.scheme, 0)
    for name in (f"{target.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if given := environment.get(variable, "").strip():
                left_out = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
                return None if _is_left_out(host, port, left_out) else _parse_proxy(variable, given)
    return None


def _parse_proxy(variable: str, given: str) -> Proxy:
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, SplitResult("", "", "", "", "")
    if parts.scheme != "http" or not host or port == 0:
        raise ConfigError(
            f"{variable} does not name a proxy that Holdfast can use: it must look like http://host:port. "
            "(TLS to the model is kept up through it; NO_PROXY leaves hosts out.)"
        )
    authorization = ""
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(user.encode()).decode()}"
    return Proxy(host, port or 80, authorization)


def _is_left_out(host: str, port: int, left_out: str) -> bool:
    """Is a host in NO_PROXY: by its name, as part of a domain, by its address or network, with its port, or by `*`?"""
    return any(entry == "*" or _covers(entry, host, port) for entry in re.split(r"[\s,]+", left_out.lower()) if entry)


def _covers(entry: str, host: str, port: int) -> bool:
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    found = _ENTRY.fullmatch(entry)
    if found is not None:
        entry = found["name"] or found["v6"]
        if found["port"] and int(found["port"]) != port:
            return False
    domain = entry.removeprefix("*").lstrip(".")
    return _spell(host) == _spell(domain) or host.endswith(f".{domain}")


def _spell(host: str) -> str:
    """An address in one of its many spellings; a name as it is."""
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        return host
