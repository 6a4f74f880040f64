"""What surrounds every request. Pure ASGI, so that nothing hides a client's disconnect or buffers a stream."""

from holdfast.api.middleware.envelope import EnvelopeMiddleware
from holdfast.api.middleware.keys import KeyMiddleware
from holdfast.api.middleware.origins import OriginMiddleware

__all__ = ["EnvelopeMiddleware", "KeyMiddleware", "OriginMiddleware"]
