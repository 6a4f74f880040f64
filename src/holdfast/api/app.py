"""The HTTP application: the routes of every surface under the middleware that all of them share.

Routing is Starlette's; streams, errors and middleware are ours. The composition root above hands in the service and
the page's routes.
"""

from collections.abc import Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.about import routes as about
from holdfast.api.chat_completions import routes as chat_completions
from holdfast.api.conversations import routes as conversations
from holdfast.api.keys import routes as keys
from holdfast.api.messages import routes as messages
from holdfast.api.middleware import (
    BoundaryMiddleware,
    KeyMiddleware,
    LeaseMiddleware,
    OriginMiddleware,
    RoomMiddleware,
)
from holdfast.api.middleware.refusing import refuse
from holdfast.api.problems import answer_error, answer_http_error, unknown_path
from holdfast.api.responses import routes as responses
from holdfast.api.runs import routes as runs
from holdfast.api.service import WholeService
from holdfast.api.sessions import routes as sessions
from holdfast.errors import HoldfastError
from holdfast.store.room import StoreRoom

ROUTES: Final[tuple[BaseRoute, ...]] = (
    *chat_completions.ROUTES,
    *responses.ROUTES,
    *messages.ROUTES,
    *runs.ROUTES,
    *conversations.ROUTES,
    *sessions.ROUTES,
    *keys.ROUTES,
    *about.ROUTES,
)
"""Tried one after the other: what is asked for most stands first."""


class HoldfastApp(Starlette):
    """Without the layer that turns what nobody caught into a page: our own outermost one answers that too."""

    def build_middleware_stack(self) -> ASGIApp:
        """The layers, the first of them outermost."""
        handlers: dict[Any, Any] = dict(self.exception_handlers)
        app: ASGIApp = ExceptionMiddleware(self.router, handlers=handlers)
        for middleware, arguments, named in reversed(self.user_middleware):
            app = middleware(app, *arguments, **named)
        return app


async def _answer_unknown(scope: Scope, receive: Receive, send: Send) -> None:
    """S7: where there is nothing, neither for a request nor for a WebSocket."""
    if scope["type"] == "websocket":
        await refuse(unknown_path(scope["path"]), scope, receive, send)
        return
    raise HTTPException(404)


def make_app(service: WholeService, *, page: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application. Mounts into any other.

    Args:
        service: the running server.
        page: the web page's static files; they need no key.
    """
    server, cluster = service.settings.server, service.supervisor.cluster
    middleware = [
        Middleware(BoundaryMiddleware),
        Middleware(OriginMiddleware, server=server, keyring=service.keyring, dialect=service.dialect, page=page),
        Middleware(KeyMiddleware, keyring=service.keyring, page=page),
    ]
    if cluster is not None:
        middleware.append(Middleware(LeaseMiddleware, cluster=cluster))
    if max_bytes := service.settings.store.max_bytes:
        middleware.append(Middleware(RoomMiddleware, room=StoreRoom(service.store, max_bytes, service.clock)))
    app = HoldfastApp(
        routes=[*ROUTES, *page],
        middleware=middleware,
        exception_handlers={HoldfastError: answer_error, HTTPException: answer_http_error},
    )
    # A path with a slash too many is an unknown path, not a redirect that loses the body.
    app.router.redirect_slashes = False
    app.router.default = _answer_unknown
    app.state.service = service
    return app
