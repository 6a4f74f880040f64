"""Where several servers share a store: what this one says of runs is true only while they are its own (R17).

A server that was frozen, or cut off from the store, for longer than its lease finds out first whether others have its
runs. Sits on the cluster; a server that is alone has no such layer.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.middleware.keys import OPEN_PATHS
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import problem_of
from holdfast.errors import StoreError
from holdfast.runs.replicas.cluster import Cluster


class LeaseMiddleware:
    """Pure ASGI. While the lease holds it costs a look at the clock."""

    def __init__(self, app: ASGIApp, cluster: Cluster) -> None:
        self._app = app
        self._cluster = cluster

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, once it is known that nobody else has what it may be about."""
        if scope["type"] in ("http", "websocket") and not self._cluster.is_certain and scope["path"] not in OPEN_PATHS:
            try:
                await self._cluster.make_certain()
            except StoreError as error:
                await refuse(problem_of(error), scope, receive, send)
                return
        await self._app(scope, receive, send)
