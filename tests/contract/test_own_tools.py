"""Tools of one's own (A1): a typed function, and what a model and a run see of it."""

import asyncio
import os
import re
import threading
import warnings
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pydantic
import pytest

import holdfast
from holdfast.config import AgentSettings
from holdfast.errors import ConfigError
from holdfast.events import ToolFinished
from holdfast.ids import RunId, SessionId
from holdfast.testing import Reply, calls, open_for_test, says, tool_call
from holdfast.tools.functions import FunctionTool, FunctionTools
from tests.serving import World, serving

CONTEXT = holdfast.ToolContext(run=RunId("run_1"), session=SessionId("s1"), memory_scope="s1")


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclass
class Place:
    city: str
    country: str = "NZ"


class Hint(TypedDict):
    words: list[str]


@holdfast.tool
def weather(place: Place, days: int = 1, unit: Unit = Unit.CELSIUS, hints: list[Hint] | None = None) -> str:
    """Tell the weather of the next days.

    It is always nice.

    Args:
        place: where, as the user
            said it
        days: how many
    """
    return f"{place.city}, {place.country}: {days} nice days in {unit.value}{hints or ''}"


async def call(tool: FunctionTool[..., Any], **arguments: Any) -> str:
    """As a model does."""
    return (await FunctionTools([tool]).call(tool.spec.name, arguments, CONTEXT)).output


def test_a_typed_function_is_a_tool_with_a_name_a_description_and_a_schema() -> None:
    """A1.a: from its signature and its docstring, and from nothing else."""
    spec = weather.spec
    assert (spec.name, spec.description) == ("weather", "Tell the weather of the next days. It is always nice.")
    properties = spec.parameters["properties"]
    assert (spec.parameters["type"], spec.parameters["required"]) == ("object", ["place"])
    assert list(properties) == ["place", "days", "unit", "hints"]
    assert properties["days"] == {"type": "integer", "description": "how many", "default": 1}
    assert properties["place"]["description"] == "where, as the user said it"
    assert properties["unit"]["default"] == "celsius"
    assert spec.parameters["$defs"]["Place"]["required"] == ["city"]
    assert spec.parameters["additionalProperties"] is False


def test_a_description_may_stand_with_the_type_or_in_sphinx_words() -> None:
    """A1.a: wherever people write it."""

    @holdfast.tool(name="find")
    def search(query: Annotated[str, "What to look for"], kind: Literal["web", "news"], limit: int) -> str:
        """Search.

        :param limit: how many at most
        :returns: what was found
        """
        return query + kind

    properties = search.spec.parameters["properties"]
    assert (search.spec.name, search.spec.description) == ("find", "Search.")
    assert [properties[name].get("description") for name in properties] == [
        "What to look for",
        None,
        "how many at most",
    ]
    assert properties["kind"]["enum"] == ["news", "web"]


async def test_arguments_arrive_as_the_types_say_and_the_function_can_still_be_called() -> None:
    """A1.a: what a model wrote as a string is a number, a dataclass is one, defaults are the function's own."""
    assert await call(weather, place={"city": "Nelson"}, days="2") == "Nelson, NZ: 2 nice days in celsius"
    assert await call(weather, place={"city": "Nelson"}, unit="kelvin", hints=[{"words": ["x"]}]) == (
        "Nelson, NZ: 1 nice days in kelvin[{'words': ['x']}]"
    )
    assert weather(Place("Oban"), 3) == "Oban, NZ: 3 nice days in celsius"


@pytest.mark.parametrize(
    "arguments", [{}, {"place": {"city": 1}}, {"place": {"city": "x"}, "day": 1}, {"place": {"city": "x"}, "days": "x"}]
)
async def test_arguments_that_do_not_fit_are_told_to_the_model_with_what_would(arguments: dict[str, Any]) -> None:
    """A1.a: the function is not called."""
    with pytest.raises(holdfast.ToolError, match=r"Wrong arguments for weather: .* It takes: place, days \(optional\)"):
        await call(weather, **arguments)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (None, "Done."),
        (3, "3"),
        (True, "true"),
        ({"a": [1, 2]}, '{"a":[1,2]}'),
        (Place("Oban"), '{"city":"Oban","country":"NZ"}'),
    ],
)
async def test_a_result_is_text_or_is_shown_as_json(value: Any, shown: str) -> None:
    """A1.a: whatever has a JSON form."""

    @holdfast.tool
    def give() -> Any:
        """Give it."""
        return value

    assert await call(give) == shown


@pytest.mark.parametrize("value", [object(), b"bytes", {1, object()}, threading.Lock()])
async def test_a_result_that_is_no_text_is_told_as_that(value: Any) -> None:
    """A1.a, A1.d: the model knows that it was carried out."""

    @holdfast.tool
    def give() -> Any:
        """Give it."""
        return value

    with pytest.raises(holdfast.ToolError, match="give was carried out, but its result cannot be shown"):
        await call(give)


async def test_a_function_that_blocks_runs_in_a_thread_and_an_async_one_on_the_loop() -> None:
    """A1.b: so that the first holds up nobody."""
    gate = threading.Event()

    @holdfast.tool
    def block() -> str:
        """Block."""
        gate.wait(5)
        return threading.current_thread().name

    @holdfast.tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0)
        return threading.current_thread().name

    blocked = asyncio.ensure_future(call(block))
    assert await call(wait) == threading.current_thread().name
    assert not blocked.done()
    gate.set()
    assert await blocked == "tool block"


async def test_any_number_of_blocking_tools_run_at_once() -> None:
    """A1.b: none waits for another's end."""
    together = threading.Barrier(40)

    @holdfast.tool
    def meet() -> str:
        """Wait for all the others."""
        together.wait(10)
        return "met"

    assert await asyncio.gather(*(call(meet) for _ in range(40))) == ["met"] * 40


async def test_a_context_is_filled_in_and_is_none_of_the_models_business() -> None:
    """A1.c: under whatever name."""

    @holdfast.tool
    async def who(note: str, context: holdfast.ToolContext) -> str:
        """Say who."""
        return f"{note} {context.run} {context.session}"

    assert list(who.spec.parameters["properties"]) == ["note"]
    assert await call(who, note="it is") == "it is run_1 s1"


async def test_a_tool_error_is_shown_and_what_any_other_exception_says_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A1.d: it may hold a secret; its kind is told, and the place where it was raised."""

    def look_up() -> str:
        raise RuntimeError("password=hunter2")

    @holdfast.tool
    def fail(kindly: bool) -> str:
        """Fail."""
        if kindly:
            raise holdfast.ToolError("There is no such city.")
        return look_up()

    with pytest.raises(holdfast.ToolError, match=r"There is no such city\."):
        await call(fail, kindly=True)
    line = look_up.__code__.co_firstlineno + 1
    with pytest.raises(
        holdfast.ToolError, match=rf"fail failed: RuntimeError at test_own_tools\.py, line {line}\."
    ) as seen:
        await call(fail, kindly=False)
    assert "hunter2" not in str(seen.value) + caplog.text
    assert "test_own_tools.py" in caplog.text


class Fatal(BaseException):
    """Some libraries' errors are no Exceptions."""


class Colour(StrEnum):
    """A text that no encoder of JSON knows."""

    RED = "red"


@holdfast.tool
def odd(what: str) -> Any:
    """Do what is odd, in a thread."""
    match what:
        case "fatal":
            raise Fatal("password=hunter2")
        case "error":
            raise holdfast.ToolError(KeyError("no such city"))  # type: ignore[arg-type]
        case "number":
            raise holdfast.ToolError(404)  # type: ignore[arg-type]
        case "half":
            raise holdfast.ToolError("half a \ud800 character")
    return Colour.RED


@holdfast.tool
async def odd_too(what: str) -> Any:
    """Do the same on the loop."""
    return odd(what)


@pytest.mark.parametrize("name", ["odd", "odd_too"])
@pytest.mark.parametrize(
    ("what", "output"),
    [
        ("fatal", r"odd(_too)? failed: It raised Fatal at test_own_tools\.py, line \d+\."),
        ("error", "'no such city'"),
        ("number", "404"),
        ("half", r"half a \? character"),
        ("colour", "red"),
    ],
)
async def test_whatever_a_tool_raises_or_returns_its_run_goes_on(name: str, what: str, output: str) -> None:
    """A1.d, R2.a: an error that is no Exception, words that are no text, text that is of a class of its own."""
    agent = holdfast.Agent(name="a", tools=[odd, odd_too])
    async with open_for_test([agent], turns=[calls(tool_call(name, what=what)), says("Done.")]) as server:
        run = await server.start("go")
        assert (await run.answer()).text == "Done."
        results = [event.output async for event in run.events() if isinstance(event, ToolFinished)]
    assert len(results) == 1
    assert re.fullmatch(output, results[0])


async def asking_tool(world: World, **fields: Any) -> list[dict[str, Any]]:
    answer = await world.client.post("/v1/runs", {"input": "go", "stream": True, **fields})
    return [event for event in answer.data if event["type"].startswith(("tool.", "approval."))]


async def test_a_tool_may_want_approval_and_have_a_time_of_its_own() -> None:
    """A1.e: in a run; the settings decide where they name the tool, and how long one may take that does not say."""

    @holdfast.tool(approval="deny")
    def forbidden() -> str:
        """Never."""
        return "done"

    @holdfast.tool(timeout=0.1)
    async def slow() -> str:
        """Take long."""
        await asyncio.sleep(10)
        return "done"

    @holdfast.tool
    async def endless() -> str:
        """Take for ever."""
        await asyncio.Event().wait()
        return "done"

    calls = [Reply(calls=(tool_call("forbidden"), tool_call("slow"), tool_call("endless"))), Reply(text="ok")]
    agent = holdfast.Agent(name="a", tools=[forbidden, slow, endless], tool_seconds=0.2)
    async with serving(calls, own=[agent]) as world:
        done = {event["name"]: event for event in await asking_tool(world) if event["type"] == "tool.finished"}
    assert (done["forbidden"]["executed"], done["forbidden"]["failed"]) == ("no", True)
    assert "took longer than 0.1 seconds" in done["slow"]["output"]
    assert "took longer than 0.2 seconds" in done["endless"]["output"]
    allowing = holdfast.Agent(name="a", tools=[forbidden], approval={"forbidden": "auto"})
    async with serving([Reply(calls=(tool_call("forbidden"),)), Reply(text="ok")], own=[allowing]) as world:
        (_, finished) = await asking_tool(world)
        assert finished["output"] == "done"


def test_a_tool_says_whether_it_may_be_repeated() -> None:
    """A1.e: after a crash it is run again if it may (R15)."""

    @holdfast.tool(repeatable=True)
    def look() -> str:
        """Look."""
        return ""

    assert (look.spec.repeatable, weather.spec.repeatable) == (True, False)


MODULE = '''
import holdfast

@holdfast.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@holdfast.tool
def double(a: int) -> int:
    """Double a number."""
    return 2 * a
'''


@pytest.mark.parametrize(("entry", "shown"), [("numbers_{}", ["add", "double"]), ("numbers_{}:double", ["double"])])
async def test_tools_are_named_in_the_settings_by_their_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, shown: list[str]
) -> None:
    """A1.f: all of a module, or one of them."""
    unique = f"{os.getpid()}_{len(shown)}"
    (tmp_path / f"numbers_{unique}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    agent = AgentSettings(prompt="", tools=(entry.format(unique),))
    async with serving([Reply(calls=(tool_call("double", a=4),)), Reply(text="8")], agent=agent) as world:
        (_, finished) = await asking_tool(world)
        assert finished["output"] == "8"
        assert [tool["function"]["name"] for tool in world.provider.requests[0].body["tools"]] == shown


async def test_a_tool_that_is_cancelled_is_left_even_where_it_does_not_heed_that() -> None:
    """A1.b, R5.a: a coroutine that swallows its cancellation is closed; a thread is left behind."""

    @holdfast.tool
    async def stubborn() -> str:
        """Never leave."""
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    release = threading.Event()

    @holdfast.tool
    def stuck() -> str:
        """Never leave."""
        release.wait(20)
        return ""

    for tool in (stubborn, stuck):
        task = asyncio.ensure_future(call(tool))
        await asyncio.sleep(0.05)
        task.cancel()
        async with asyncio.timeout(4):
            with pytest.raises(asyncio.CancelledError):
                await task
    release.set()


def make_bad(kind: str) -> Any:
    def positional(a: int, /) -> str:
        """Doc."""
        return ""

    def stars(*a: int) -> str:
        """Doc."""
        return ""

    def untyped(a) -> str:  # type: ignore[no-untyped-def]
        """Doc."""
        return ""

    def schemaless(a: threading.Thread) -> str:
        """Doc."""
        return ""

    def undocumented(a: int) -> str:
        return ""

    async def generator(a: int) -> Any:
        """Doc."""
        yield a

    return locals()[kind]


class Crumb(pydantic.BaseModel):
    size: int
    inner: "Crumb | None" = None


async def test_models_of_pydantic_are_types_like_any_other() -> None:
    """A1.a: whoever comes from FastAPI has them: nested, optional, in lists, by default, and as a result."""

    @holdfast.tool
    def bake(crumb: Crumb, more: list[Crumb] = [], spare: Crumb | None = Crumb(size=1)) -> Crumb:  # noqa: B006, B008
        """Bake."""
        assert crumb.inner is not None
        return Crumb(size=crumb.inner.size + sum(each.size for each in more))

    shown = bake.spec.parameters
    assert shown["required"] == ["crumb"]
    assert shown["properties"]["crumb"] == {"$ref": "#/$defs/Crumb"}
    assert shown["properties"]["spare"]["default"] == {"size": 1, "inner": None}
    assert shown["$defs"]["Crumb"]["properties"]["inner"]["anyOf"] == [{"$ref": "#/$defs/Crumb"}, {"type": "null"}]
    given = {"crumb": {"size": 1, "inner": {"size": 2}}, "more": [{"size": 3}]}
    assert await call(bake, **given) == '{"size":5,"inner":null}'
    with pytest.raises(holdfast.ToolError, match=r"(?s)Wrong arguments for bake: .*valid integer"):
        await call(bake, crumb={"size": "large"})


async def test_a_context_may_be_optional() -> None:
    """A1.c: so that Python can call the function without one."""

    @holdfast.tool
    def where(context: holdfast.ToolContext | None = None) -> str:
        """Say where."""
        return "nowhere" if context is None else context.run

    assert where.spec.parameters["properties"] == {}
    assert (await call(where), where()) == ("run_1", "nowhere")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "has space"}, "up to 64 letters, digits, _ and -, which providers take, and not 'has space'"),
        ({"name": ""}, "and not ''"),
        ({"timeout": "soon"}, "timeout must be a number of seconds over 0"),
        ({"timeout": 0}, "timeout must be a number of seconds over 0"),
        ({"approval": "perhaps"}, 'approval must be "auto", "ask" or "deny"'),
    ],
)
def test_options_that_no_tool_can_have_are_told_with_file_and_line(options: dict[str, Any], words: str) -> None:
    """A8.a, A1.e: a provider would refuse every request that has such a tool."""
    with pytest.raises(ConfigError, match=rf"test_own_tools\.py, line \d+: .*{words}"):
        holdfast.tool(**options)(_twin)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("positional", "a model passes arguments by name"),
        ("stars", "a model passes arguments by name"),
        ("untyped", "its parameter a has no type: write a: str"),
        ("schemaless", r"its parameter a is of a type that has no JSON form \(Thread\)"),
        ("undocumented", "has no docstring"),
        ("generator", "generator is a generator"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_told_with_file_and_line(kind: str, words: str) -> None:
    """A8.a: when it is made one, not when a model first calls it."""
    with pytest.raises(ConfigError, match=rf"test_own_tools\.py, line \d+: .*{words}"):
        holdfast.tool(make_bad(kind))


async def test_a_tool_that_forks_leaves_no_second_server_behind() -> None:
    """A8.a: the child ends where it would come back, and the parent's call is as any other."""

    @holdfast.tool
    def fork() -> str:
        """Fork."""
        child = os.fork()
        if child == 0:
            return "I am the child"
        _, status = os.waitpid(child, 0)
        return f"the child ended with {os.waitstatus_to_exitcode(status)}"

    with warnings.catch_warnings():
        # From Python 3.12 on it says itself that this is unwise.
        warnings.simplefilter("ignore", DeprecationWarning)
        assert await call(fork) == "the child ended with 70"


async def test_two_tools_of_one_name_are_told_at_start() -> None:
    """A8.a: with where both are."""
    twin = holdfast.tool(name="weather")(_twin)
    with pytest.raises(ConfigError, match=r"line \d+: there are two tools named 'weather'; the other one is at "):
        async with serving(own=[holdfast.Agent(name="a", tools=[weather, twin])]):
            pass


def _twin() -> str:
    """Tell the weather too."""
    return ""
