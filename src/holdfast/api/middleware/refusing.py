"""Turning a connection away, whichever kind it is. Sits on problems."""

from starlette.types import Receive, Scope, Send

from holdfast.api.problems import Problem, make_problem_response


async def refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a problem; a WebSocket is refused before it is open."""
    if scope["type"] == "http":
        await make_problem_response(problem, scope)(scope, receive, send)
        return
    await receive()  # websocket.connect: nothing may be sent before it
    if "websocket.http.response" in scope.get("extensions", {}):
        await make_problem_response(problem, scope)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": problem.message[:120]})
