"""What `store.url` may say: a file of SQLite's, a database of PostgreSQL's, or memory; and how it is shown.

A database's URL holds a password, so that no message repeats any part of it that could be one. Above: paths, and the
stores. Below: errors.
"""

import re
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from holdfast.errors import ConfigError

StoreKind = Literal["sqlite", "postgres", "memory"]
_SCHEMES: Final = ("postgresql", "postgres")
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:,\s]*)(?::(\d{1,5}))?")
_FORMS: Final = (
    'store.url must be "sqlite:////absolute/path.db", "sqlite:///relative/path.db", '
    '"postgresql://user:password@host:5432/database" or "memory:".'
)


def store_kind(url: str) -> StoreKind:
    """What kind of store a URL names; an empty one is a file in the data directory.

    Raises:
        ConfigError: it is of no kind that Holdfast knows, or not written as it should be.
    """
    if url == "memory:":
        return "memory"
    if url.partition(":")[0] in _SCHEMES:
        _check_postgres(url)
        return "postgres"
    if not url:
        return "sqlite"
    path = url.removeprefix("sqlite:///")
    if path in (url, "", ":memory:") or path.endswith("/") or "\x00" in path:
        raise ConfigError(_FORMS)
    return "sqlite"


def show_url(url: str) -> str:
    """A URL for people: without password, and without settings that may name one."""
    if url.partition(":")[0] not in _SCHEMES:
        return url
    parts, options = _check_postgres(url)
    user, _, place = parts.netloc.rpartition("@")
    name = unquote(user.partition(":")[0]) or options.get("user", "")
    database = parts.path.removeprefix("/") or quote(options.get("dbname", options.get("database", "")))
    host = f"?host={options['host']}" if not place and "host" in options else ""
    return f"postgresql://{f'{quote(name)}@' if name else ''}{place}/{database}{host}"


def _check_postgres(url: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts of a database's URL, and its options.

    Raises:
        ConfigError: it is not written as it should be.
    """
    try:
        parts = urlsplit(url)
        options = {key: values[-1] for key, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
    except ValueError:
        raise _malformed("what follows the ? must be name=value&name=value") from None
    # In a password these end the part that it is in: what follows would be taken for a host or a name, and shown.
    if url.count("@") > parts.netloc.count("@") or parts.netloc.count("@") > 1 or parts.fragment or "#" in url:
        raise _malformed("in user, password and names write @ as %40, / as %2F, ? as %3F and # as %23")
    if not url.startswith(f"{parts.scheme}://") or re.search(r"[\s\x00-\x1f]", url):
        raise _malformed("it begins with postgresql:// and has no spaces in it")
    place = parts.netloc.rpartition("@")[2]
    for host in place.split(","):
        found = _HOST.fullmatch(host)
        if found is None or (found[1] and not 0 < int(found[1]) < 65536):
            raise _malformed("its port is a number; a user with a password is followed by @ and the host")
    if (mode := options.get("sslmode", "prefer")) not in _SSL_MODES:
        raise _malformed(f"sslmode is one of {', '.join(_SSL_MODES)}" + (", and not empty" if not mode else ""))
    return parts, options


def _malformed(why: str) -> ConfigError:
    return ConfigError(f'store.url must be an address such as "postgresql://user:password@host:5432/database": {why}.')
