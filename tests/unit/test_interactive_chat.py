"""A conversation, its commands and what is said about them, typed by a script to a real server."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from holdfast.cli.options import ClientOptions
from holdfast.cli.server_connection import ServerConnection, connect
from holdfast.cli.terminal.console import Console
from holdfast.cli.terminal.interactive_chat import InteractiveChat
from holdfast.cli.terminal.lists import find_newest_session, find_run, find_session, print_runs, print_sessions
from holdfast.cli.terminal.prompt import EndOfInputError, InterruptedPromptError, Prompt
from holdfast.cli.terminal.render import TerminalView
from holdfast.cli.terminal.run_follower import Interrupts, LeftError, NobodyToAsk, RunFollower
from holdfast.client import HoldfastClient, NewRun, ServerRun, Session, Tokens
from holdfast.config import AgentSettings, StreamSettings
from holdfast.errors import ClientError, ServerRefusedError
from holdfast.events import ApprovalAsked
from holdfast.outcomes import Cancelled, Completed
from holdfast.testing import Reply, tool_call
from tests.serving import KEY, World, serving

HELD = Reply(text=("Some", " more"), hold_after=1)
Line = str | type[Exception]


class Typed(Prompt):
    """Somebody who types these lines; at the end Ctrl-D."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)

    async def read(self) -> str:
        line = next(self._lines, EndOfInputError)
        if isinstance(line, str):
            return line
        raise line


def never() -> None:
    raise AssertionError("nobody has left")


class Sitting:
    """One sitting at a terminal without one."""

    def __init__(self, world: World, client: HoldfastClient) -> None:
        self.world = world
        self.client = client
        self._output = io.StringIO()
        self.console = Console(self._output, {}, width=100)
        self.interrupts = Interrupts(never)

    def chat(self, *, model: str | None = None, system: str | None = None) -> InteractiveChat:
        connection = ServerConnection(client=self.client, where="here")
        return InteractiveChat(connection, self.console, self.interrupts, NobodyToAsk(), model=model, system=system)

    async def type(self, *lines: Line, session: Session | None = None, **options: str | None) -> str:
        """What is shown."""
        async with asyncio.timeout(20):
            self.code = await self.chat(**options).talk(Typed(lines), session)
        return self.shown()

    def shown(self) -> str:
        said = self._output.getvalue()
        self._output.seek(0)
        self._output.truncate()
        return said


@asynccontextmanager
async def sitting(*script: Reply) -> AsyncIterator[Sitting]:
    async with (
        serving(script, key=KEY, stream=StreamSettings()) as world,
        HoldfastClient(world.base_url, KEY) as client,
    ):
        yield Sitting(world, client)


async def test_a_conversation_is_one_session_with_its_model_and_instructions_until_it_is_left() -> None:
    """T1.c: each question goes on with the session; /new begins another."""
    async with sitting(*[Reply(text=f"Answer {number}.") for number in range(4)]) as here:
        said = await here.type("one?", "  ", " /two?", "/new", "three?", "/quit", "never", system="Be brief.")
        assert here.code == 0
        assert said.startswith("Holdfast ") and " · scripted/m-1 · here\n" in said
        runs = (await here.client.list_runs())[::-1]
        assert [run.text for run in runs] == ["Answer 0.", "Answer 1.", "Answer 2."]
        assert runs[0].session_id == runs[1].session_id != runs[2].session_id
        requests = [request.body["messages"] for request in here.world.provider.requests]
    assert [[message["content"] for message in messages] for messages in requests] == [
        ["Be brief.", "one?"],
        ["Be brief.", "one?", "Answer 0.", "/two?"],
        ["Be brief.", "three?"],
    ]


async def test_ctrl_c_at_the_prompt_leaves_when_nothing_was_typed_in_between() -> None:
    """T1.b: a second one leaves; a line in between makes the next one the first again."""
    ctrl_c = InterruptedPromptError
    async with sitting() as here:
        said = await here.type(ctrl_c, "/stop", ctrl_c, "/runs", "/quit")
        assert (here.code, said.count("Ctrl-C again, or Ctrl-D, leaves.")) == (0, 2)
        said = await here.type(ctrl_c, ctrl_c, "/runs")
        assert (here.code, "no runs yet" in said) == (130, False)
        await here.type(ctrl_c)
        assert here.code == 0, "Ctrl-D"


async def test_what_a_server_refuses_is_said_and_the_conversation_goes_on() -> None:
    """T1.d: a server that is away, or says no, is no reason to lose the conversation."""
    async with sitting(Reply(text="Yes.")) as here:
        said = await here.type("/resume nowhere", "/resume", "/nonsense", "well?")
        assert "There is no session nowhere" in said
        assert "Which one? /sessions lists them." in said
        assert "There is no command /nonsense." in said
        assert "\nYes.\n" in said
        assert here.code == 0
        assert len(here.world.provider.requests) == 1, "a command is not asked as a question"


async def test_a_session_that_is_resumed_shows_what_was_said_last() -> None:
    """T1.c: resume a session, by its id or by words of its title."""
    async with sitting(Reply(text="One."), Reply(text="Two."), Reply(text="Three.")) as here:
        await here.type("first?", "second?")
        (session,) = await here.client.list_sessions()
        said = await here.type(f"/resume {session.id}", "third?")
        assert (
            f"Session {session.id}: {session.title or 'no title'}, 4 messages, on scripted/m-1.\n› second?\nTwo.\n"
            in said
        )
        assert "first?" not in said.partition("4 messages")[2]
        runs = await here.client.list_runs(session=session.id)
        assert len(runs) == 3
        listed = await here.type(
            "/sessions", "/sessions no such words", f"/resume {session.id}", "/runs", "/new", "/runs"
        )
        assert re.search(rf"{session.id}  [-\d]+ [:\d]+  3 runs  ", listed)
        assert "There are none." in listed
        assert listed.count("completed") == 3
        assert listed.rstrip().endswith("This session has no runs yet.")


async def test_a_question_is_asked_again_without_its_answer() -> None:
    """T1.c: /retry leaves the session as it is, and goes on in a copy; a first question begins anew."""
    async with sitting(*[Reply(text=f"Answer {number}.") for number in range(4)]) as here:
        await here.type("/retry", "one?", "/retry", "two?", "/retry")
        assert len(await here.client.list_sessions()) == 3
        runs = await here.client.list_runs()
        asked = [request.body["messages"] for request in here.world.provider.requests]
        assert len({run.session_id for run in runs}) == 3
    assert [[message["content"] for message in messages] for messages in asked] == [
        ["one?"],
        ["one?"],
        ["one?", "Answer 1.", "two?"],
        ["one?", "Answer 1.", "two?"],
    ]


async def test_another_model_is_asked_from_then_on_and_which_there_are_is_shown() -> None:
    """T1.c, C16.b: one that the server does not list is said to be unknown."""
    async with sitting(Reply(text="One."), Reply(text="Two.")) as here:
        said = await here.type("/model", "/model scripted/m-2", "?", "/model holdfast", "/model")
        assert "› holdfast (scripted/m-1)\n" in said.partition("is asked from now on.")[0]
        assert "scripted/m-2 is asked from now on. The server does not list it" in said
        assert "holdfast is asked from now on.\n" in said
        assert [request.body["model"] for request in here.world.provider.requests] == ["m-2"]


async def test_a_run_that_somebody_else_has_begun_is_followed_and_one_that_goes_on_can_be_stopped() -> None:
    """T1.b, R5.b: /stop ends what the session is busy with and says what is kept."""
    async with sitting(Reply(text="One."), HELD) as here:
        await here.type("first?")
        (session,) = await here.client.list_sessions()
        assert "Nothing is going on in this session." in await here.type("/stop", session=session)
        started = await here.client.start_run(NewRun(input="second?", session_id=session.id))
        async with asyncio.timeout(10):
            while (await here.client.get_run(started.run_id)).text != "Some":
                await asyncio.sleep(0.01)
        following = asyncio.ensure_future(here.type(session=await here.client.get_session(session.id)))
        async with asyncio.timeout(10):
            while "Some" not in here._output.getvalue():
                await asyncio.sleep(0.01)
        assert "It has a run that is going on:" in here._output.getvalue()
        assert "One." not in here._output.getvalue()
        stopping = here.chat()
        stopping._session = session.id
        await stopping._stop("")
        said = await following + here.shown()
        assert "4 characters are kept." in said
        assert "■ Stopped (user)" in said
        assert (await here.client.get_run(started.run_id)).reason == "user"


async def test_a_line_that_begins_with_a_slash_is_completed() -> None:
    """T1.c: commands, sessions by id or title, models by a part of their name."""
    async with sitting(Reply(text="One.")) as here:
        await here.type("about cats?")
        (session,) = await here.client.list_sessions()
        chat = here.chat()
        assert [text for text, _ in chat.suggest("/")][:3] == ["/help", "/new", "/sessions"]
        assert [text for text, _ in chat.suggest("/re")] == ["/resume ", "/retry"]
        assert list(chat.suggest("re")) == list(chat.suggest("/re\n")) == list(chat.suggest("/resume x")) == []
        await chat.talk(Typed([]), None)
        assert [text for text, _ in chat.suggest(f"/resume {session.id[:6]}")] == [f"/resume {session.id}"]
        assert list(chat.suggest("/resume dogs")) == []
        assert ("/model holdfast", "scripted/m-1") in list(chat.suggest("/model fast"))
        assert list(chat.suggest("/model nothing")) == []


# Finding.


async def test_a_session_is_found_by_its_id_or_by_words_that_no_other_has() -> None:
    """T1.c: resume a session."""
    async with sitting(Reply(text="One.")) as here:
        with pytest.raises(ClientError, match="no session to continue yet"):
            await find_newest_session(here.client)
        with pytest.raises(ClientError, match="no runs yet"):
            await find_run(here.client, "last")
        for title in ("The tides of March", "The tides of May", "Cats"):
            assert (await here.world.client.post("/v1/sessions", {"title": title})).status < 300
        sessions = {session.title: session for session in await here.client.list_sessions()}
        cats = sessions["Cats"]
        assert await find_session(here.client, cats.id) == cats
        assert await find_session(here.client, "cats") == cats
        with pytest.raises(ClientError, match="Several sessions have 'tides'"):
            await find_session(here.client, "tides")
        with pytest.raises(ServerRefusedError, match="There is no session dogs"):
            await find_session(here.client, "dogs")
        assert (await find_newest_session(here.client)).id == (await here.client.list_sessions())[0].id
        started = await here.client.start_run(NewRun(input="?"))
        assert await find_run(here.client, "last") == started.run_id
        for name in (started.run_id, started.run_id[:20], "run_", f"resp_{started.run_id[4:20]}"):
            assert await find_run(here.client, name) == started.run_id
        with pytest.raises(ClientError, match="There is no run run_x, and none whose id begins so"):
            await find_run(here.client, "run_x")
        async with HoldfastClient(here.world.base_url, "wrong") as stranger:
            with pytest.raises(ServerRefusedError, match="Set HOLDFAST_API_KEY"):
                await find_session(stranger, "cats")


# Lists.


def made_run(**fields: object) -> ServerRun:
    known: dict[str, object] = {
        "id": "run_1",
        "status": "completed",
        "outcome": "completed",
        "reason": None,
        "message": None,
        "session_id": "s",
        "model": "m",
        "surface": "runs",
        "created_at": 1_000.0,
        "ended_at": 1_002.5,
        "usage": Tokens(input_tokens=3, output_tokens=2),
        "text": "An answer\nof two lines",
        "events": 9,
    }
    return ServerRun(**{**known, **fields})  # type: ignore[arg-type]


def test_runs_stand_in_columns_and_one_that_goes_on_has_taken_no_time_yet() -> None:
    """T2.a: a line for each."""
    output = io.StringIO()
    going = made_run(id="run_22", status="running", outcome=None, ended_at=None, text="\x1b[2J" + "x" * 200)
    cut = made_run(status="incomplete", reason="max_turns", text="")
    print_runs(Console(output, {}), [made_run(), going, cut])
    lines = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "THEN", line) for line in output.getvalue().splitlines()]
    assert lines == [
        "run_1   completed               THEN  2.5 s  3+2  m  An answer of two lines",
        "run_22  running                 THEN  -      3+2  m  ␛[2J" + "x" * 95 + "…",
        "run_1   incomplete (max_turns)  THEN  2.5 s  3+2  m",
    ]
    print_runs(Console(output, {}), [])


@pytest.mark.parametrize(("width", "preview"), [(68, "  An answer tha…"), (64, "  An answer…"), (63, "")])
def test_on_a_terminal_a_run_takes_one_line(width: int, preview: str) -> None:
    output = io.StringIO()
    print_runs(
        Console(output, {"FORCE_COLOR": "1"}, no_color=True, width=width), [made_run(text="An answer that goes on")]
    )
    line = output.getvalue().rstrip("\n")
    assert line.endswith(f"  3+2  m{preview}")
    assert len(line) <= width


def test_sessions_are_listed_with_what_is_going_on() -> None:
    output = io.StringIO()
    quiet = Session(id="s1", title="Tides\x1b[2J", created_at=0.0, updated_at=1.0, runs=1)
    busy = Session(id="s22", title="", created_at=0.0, updated_at=1.0, runs=2, active_run="run_1")
    print_sessions(Console(output, {}), [quiet, busy])
    first, second = output.getvalue().splitlines()
    assert re.fullmatch(r"s1   [-\d]+ [:\d]+  1 run  Tides␛\[2J", first)
    assert re.fullmatch(r"s22  [-\d]+ [:\d]+  2 runs, one going on  ", second)


# Ctrl-C.


async def test_a_ctrl_c_is_for_the_run_that_is_followed_and_two_leave() -> None:
    """T1.b: Ctrl-C stops the answer and keeps what came; a second one leaves."""
    async with sitting(HELD, Reply(text="Whole.")) as here:
        started = await here.client.start_run(NewRun(input="?"))
        view = TerminalView(here.console)
        following = asyncio.ensure_future(RunFollower(here.client, started.run_id, view, here.interrupts).to_end())
        async with asyncio.timeout(10):
            while view.transcript.text != "Some":
                await asyncio.sleep(0.01)
        here.interrupts.hit()
        async with asyncio.timeout(10):
            transcript = await following
        assert (transcript.outcome, transcript.text) == (Cancelled(reason="user"), "Some")
        assert "Stopping; Ctrl-C again to leave." in here.shown()

        with here.interrupts.held():
            started = await here.client.start_run(NewRun(input="?"))
            transcript = await RunFollower(
                here.client, started.run_id, TerminalView(here.console), here.interrupts
            ).to_end()
        assert transcript.outcome == Completed(), "the one before is over with its run"


async def test_whoever_only_looks_leaves_with_the_first_ctrl_c_and_the_run_goes_on() -> None:
    """T2.a: Ctrl-C ends tail and not the run."""
    async with sitting(HELD) as here:
        started = await here.client.start_run(NewRun(input="?"))
        view = TerminalView(here.console)
        follower = RunFollower(here.client, started.run_id, view, here.interrupts, on_interrupt="leave")
        following = asyncio.ensure_future(follower.to_end())
        async with asyncio.timeout(10):
            while view.transcript.text != "Some":
                await asyncio.sleep(0.01)
        here.interrupts.hit()
        with pytest.raises(LeftError):
            await following
        assert (await here.client.get_run(started.run_id)).status == "running"
        assert "Stopping" not in here.shown()


async def test_a_ctrl_c_that_nobody_takes_leaves_and_so_does_a_second_one_before_the_first_was_taken() -> None:
    """T1.b: a second one leaves, whatever the first has come to."""
    left: list[str] = []
    interrupts = Interrupts(lambda: left.append("left"))
    interrupts.hit()
    assert left == ["left"]
    with interrupts.held():
        interrupts.hit()
        assert left == ["left"], "the one from before is forgotten, and this one is taken"
        async with asyncio.timeout(1):
            await interrupts.wait()
        with interrupts.held():
            interrupts.hit()
        assert left == ["left"]
        interrupts.hit()
        assert left == ["left", "left"]
    interrupts.hit()
    assert len(left) == 3


# An agent of its own.


async def test_an_agent_that_is_opened_here_is_reached_from_here_alone_and_by_nobody_else(tmp_path: Path) -> None:
    """T1.d, S4.a: on loopback, whatever address a server would have, and with a key that nobody else knows."""
    environment = {
        "HOLDFAST_DATA_DIR": str(tmp_path),
        "HOLDFAST_OLLAMA": "off",
        "HOLDFAST_PORT": "0",
        "HOLDFAST_HOST": "0.0.0.0",
        "HOLDFAST_API_KEY": KEY,
        "HOLDFAST_CORS_ORIGINS": "https://a.example",
    }
    options = ClientOptions(environment=environment, server=None, config=None, as_json=False, no_color=False)
    async with asyncio.timeout(20), connect(options) as connection:
        assert connection.where.startswith("this machine (")
        url = connection.client.base_url
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert (await connection.client.models())[0].answered_by == "demo"
        async with aiohttp.ClientSession() as stranger:
            for key in ("", KEY):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                async with stranger.get(f"{url}/v1/models", headers=headers) as answer:
                    assert answer.status == 401
            async with stranger.get(f"{url}/health", headers={"Origin": "https://a.example"}) as answer:
                assert answer.status == 403
    async with HoldfastClient(url) as late:
        with pytest.raises(ClientError, match="cannot be reached"):
            await late.health(1.0)


async def test_a_server_that_was_named_is_the_one_that_is_used_or_it_is_an_error(tmp_path: Path) -> None:
    """T1.d: --server, then HOLDFAST_SERVER; no other is looked for when it is not there."""
    async with serving([Reply(text="One.")], key=KEY) as world:
        environment = {
            "HOLDFAST_DATA_DIR": str(tmp_path / "data"),
            "HOLDFAST_OLLAMA": "off",
            "HOLDFAST_API_KEY": KEY,
            "HOLDFAST_SERVER": "http://127.0.0.1:9",
        }
        options = ClientOptions(
            environment=environment, server=f"{world.base_url}/v1/", config=None, as_json=False, no_color=False
        )
        async with connect(options) as connection:
            assert connection.where == world.base_url
            assert (await connection.client.models())[0].answered_by == "scripted/m-1"
        elsewhere = ClientOptions(environment=environment, server=None, config=None, as_json=False, no_color=False)
        with pytest.raises(ClientError, match=r"127\.0\.0\.1:9 cannot be reached"):
            async with connect(elsewhere):
                raise AssertionError("there is nobody there")
    assert not (tmp_path / "data").exists(), "no agent was opened here"


# Approvals.


class Thinking:
    """Somebody who reads the question and does not answer."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[ApprovalAsked] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()

    async def ask(self, event: ApprovalAsked) -> bool:
        self.asked.put_nowait(event)
        try:
            await asyncio.Event().wait()
        finally:
            self.closed.put_nowait(event.call_id)
        return False


async def test_a_question_that_another_client_has_answered_is_taken_back_while_the_run_goes_on() -> None:
    """R12.a: approve or deny from any client: no key pressed later is taken for an answer to what is settled."""
    remembers = Reply(calls=(tool_call("remember", text="Tides."),))
    person = Thinking()
    agent = AgentSettings(prompt="", tools=("memory",), approval="ask")
    async with (
        serving([remembers, HELD], key=KEY, agent=agent, stream=StreamSettings()) as world,
        HoldfastClient(world.base_url, KEY) as client,
    ):
        here = Sitting(world, client)
        started = await client.start_run(NewRun(input="?"))
        view = TerminalView(here.console)
        follower = RunFollower(client, started.run_id, view, here.interrupts, asker=person)
        following = asyncio.ensure_future(follower.to_end())
        async with asyncio.timeout(10):
            asked = await person.asked.get()
            await client.answer_approval(started.run_id, asked.call_id, True)
            going = await world.provider.received(2)
            assert await person.closed.get() == asked.call_id
            assert not following.done(), "the model is still speaking"
            going.release()
            transcript = await following
        assert (transcript.outcome, transcript.text) == (Completed(), "Some more")
        assert "Somebody else has answered." not in here.shown()
