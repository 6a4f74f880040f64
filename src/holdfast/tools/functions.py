"""A tool of one's own is a typed Python function (A1): `@holdfast.tool`.

Its name, description and schema come from the function itself. Async functions run on the loop as guests, others each
in a thread, so that neither holds up another run. Above: the toolbox, the composition root, and the user's own code.
Below: signatures, guests.
"""

import asyncio
import contextvars
import functools
import inspect
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from holdfast.config import ApprovalMode
from holdfast.errors import ConfigError, GuestError, ToolError
from holdfast.guests.blame import blame, defined_at, trail
from holdfast.guests.running import end_child, run_guest
from holdfast.messages import ToolSpec
from holdfast.tools.arguments import unknown_tool
from holdfast.tools.models import plain_model, read_model
from holdfast.tools.port import ToolContext, ToolResult
from holdfast.tools.signatures import read_signature

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
LEAVE_SECONDS: Final = 0.5
"""A thread cannot be ended: so long is waited for one whose call was cancelled."""


class FunctionTool(Generic[P, R]):
    """A function that a model may call; whoever calls it in Python calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        approval: ApprovalMode = "auto",
        repeatable: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make a tool of it.

        Raises:
            ConfigError: it cannot be one; says why, and where it stands.
        """
        if inspect.isclass(function) or not callable(function) or not hasattr(function, "__name__"):
            what = type(function).__name__
            raise ConfigError(f"A tool is a function, with a name, types and a docstring, and this is of type {what}.")
        called = function.__name__ if name is None else name
        if not isinstance(called, str) or not _NAME.fullmatch(called):
            raise ConfigError(
                f"{defined_at(function)}: a tool is called by up to 64 letters, digits, _ and -, which providers take, "
                f"and not {called!r}."
            )
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(
                f"{defined_at(function)}: {function.__name__} is a generator; a tool returns its result at once."
            )
        if approval not in ("auto", "ask", "deny"):
            raise ConfigError(f'{defined_at(function)}: approval must be "auto", "ask" or "deny".')
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ConfigError(f"{defined_at(function)}: timeout must be a number of seconds over 0.")
        functools.update_wrapper(self, function)
        self.function = function
        signature = read_signature(function, called)
        self._kind, self._context = signature.kind, signature.context
        self._takes = ", ".join(
            field.name if field.default is msgspec.NODEFAULT else f"{field.name} (optional)"
            for field in msgspec.structs.fields(signature.kind)
        )
        self.spec = ToolSpec(
            name=called,
            description=signature.description,
            parameters=signature.parameters,
            repeatable=repeatable,
            approval=approval,
            seconds=timeout,
        )

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*arguments, **named)

    async def carry_out(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call it as a model does.

        Raises:
            ToolError: the arguments do not fit, or it could not be done.
        """
        given = self._read(arguments)
        if self._context is not None:
            given[self._context] = context
        who = f"tool {self.spec.name}"
        function: Callable[..., Any] = self.function
        try:
            if inspect.iscoroutinefunction(function):
                value = await run_guest(function(**given), who)
            else:
                value = await _in_own_thread(functools.partial(function, **given), who)
        except ToolError:
            raise
        except Exception as error:
            logger.warning("%s failed: %s\n%s", who, blame(error, full=True), trail(error))
            # What the exception says may hold a secret: whoever wants it told raises ToolError.
            raise ToolError(f"{self.spec.name} failed: {blame(error)}.") from None
        return ToolResult(output=self._as_text(value))

    def _read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            # Not strict: models write numbers and booleans as strings, and what they mean is clear.
            read = msgspec.convert(dict(arguments), self._kind, strict=False, dec_hook=read_model)
        except msgspec.ValidationError as error:
            takes = f"It takes: {self._takes}." if self._takes else "It takes no arguments."
            raise ToolError(f"Wrong arguments for {self.spec.name}: {error}. {takes}") from None
        given = {name: getattr(read, name) for name in read.__struct_fields__}
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}

    def _as_text(self, value: Any) -> str:
        if isinstance(value, str):
            return str.__str__(value)
        if value is None:
            return "Done."
        try:
            if isinstance(value, bytes | bytearray | memoryview):
                raise TypeError
            return msgspec.json.encode(value, enc_hook=plain_model).decode()
        except (TypeError, ValueError, RecursionError):
            logger.warning(
                "tool %s (%s) returned a %s, which is no text and has no JSON form",
                self.spec.name,
                defined_at(self.function),
                type(value).__name__,
            )
            raise ToolError(
                f"{self.spec.name} was carried out, but its result cannot be shown: it is a {type(value).__name__}, "
                "which is no text and has no JSON form."
            ) from None


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    approval: ApprovalMode = "auto",
    repeatable: bool = False,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    approval: ApprovalMode = "auto",
    repeatable: bool = False,
    timeout: float | None = None,
) -> Any:
    """Make a typed function a tool that a model may call.

    Its name, docstring and types are what the model is shown. A parameter of type `ToolContext` is filled in.

    Args:
        function: the function, where the decorator is written without brackets.
        name: what the model calls it; by default the function's name.
        approval: `"ask"`: somebody has to approve each call; `"deny"`: none is carried out. Settings may be stricter.
        repeatable: carried out twice it does no more than once, so that it may be run again after a crash.
        timeout: how many seconds it may take; by default as `agent.tool_seconds` says.
    """
    make = functools.partial(
        FunctionTool[..., Any], name=name, approval=approval, repeatable=repeatable, timeout=timeout
    )
    return make if function is None else make(function)


class FunctionTools:
    """Functions as a tool set."""

    def __init__(self, functions: Sequence[FunctionTool[..., Any]]) -> None:
        self._tools = {function.spec.name: function for function in functions}
        self._specs = tuple(function.spec for function in self._tools.values())

    def specs(self) -> Sequence[ToolSpec]:
        """One for each function."""
        return self._specs

    def label(self, name: str, arguments: dict[str, Any]) -> str:
        """Its name, and what it is given."""
        return " ".join([name, *(str(value) for value in arguments.values() if isinstance(value, str | int | float))])

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Call a function.

        Raises:
            ToolError: there is none of that name, its arguments do not fit, or it could not be done.
        """
        found = self._tools.get(name)
        if found is None:
            raise unknown_tool(name, self._tools)
        return await found.carry_out(arguments, context)

    async def aclose(self) -> None:
        """Nothing is held."""


async def _in_own_thread(work: Callable[[], Any], who: str) -> Any:
    """Blocking work in a thread of its own: one that never ends takes no place that another tool needs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context, server = contextvars.copy_context(), os.getpid()

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        if not done.cancelled():
            setter(value)

    def run() -> None:
        setter: Callable[[Any], None]
        try:
            value, setter = context.run(work), done.set_result
        except BaseException as error:
            value, setter = error, done.set_exception
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                value = GuestError(f"It raised {type(error).__name__}.").with_traceback(error.__traceback__)
        if os.getpid() != server:
            end_child(who)
        try:
            loop.call_soon_threadsafe(tell, setter, value)
        except RuntimeError:
            return  # The server has ended meanwhile.

    threading.Thread(target=run, name=who, daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done], timeout=LEAVE_SECONDS)
        if not done.done():
            logger.warning("%s was cancelled and still runs in its thread: Python cannot end it", who)
        elif not done.cancelled():
            done.exception()
        raise
