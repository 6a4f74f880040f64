"""Where a request says who asks (S12), and whether there is room (S18): middleware puts it there, routes read it."""

from typing import Final

CALLER: Final = "holdfast.caller"
"""In the ASGI scope: a `Caller`. A request that nobody has looked at has none, and sees nothing."""
DETAILS: Final = "holdfast.details"
"""In the ASGI scope: what the audit log shall say beside who did what to which (S14). No contents."""
ROOM: Final = "holdfast.room"
"""In the ASGI scope, where the store has a bound (S18): the `StoreRoom`."""
