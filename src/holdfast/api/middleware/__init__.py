"""What surrounds every request. Pure ASGI, so that nothing hides a client's disconnect or buffers a stream."""

from holdfast.api.middleware.boundary import BoundaryMiddleware
from holdfast.api.middleware.keys import KeyMiddleware
from holdfast.api.middleware.leases import LeaseMiddleware
from holdfast.api.middleware.origins import OriginMiddleware
from holdfast.api.middleware.room import RoomMiddleware

__all__ = ["BoundaryMiddleware", "KeyMiddleware", "LeaseMiddleware", "OriginMiddleware", "RoomMiddleware"]
