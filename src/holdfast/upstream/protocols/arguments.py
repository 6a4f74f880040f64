"""What a model's calls are shown to it with in its next turns, on every protocol (U13).

Some providers read the arguments in a conversation and refuse what is no object, for as long as it stands there. No
I/O. The protocols' `encode` sits above.
"""

from typing import Any

import msgspec


def shown_arguments(arguments: str) -> str:
    """A call's arguments as the object that they should be, byte for byte; what is none is shown as what it is."""
    if not arguments.strip():
        return "{}"
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        readable = arguments.encode("utf-8", "replace").decode()
        return msgspec.json.encode({"invalid_arguments": readable}).decode()
    return arguments
