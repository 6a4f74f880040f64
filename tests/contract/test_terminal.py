"""T1, T2: the terminal, driven as a user drives it: a real pseudo-terminal, real pipes, a real server process."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.screens import Screen
from tests.serving import ServerProcess, running_server
from tests.terminals import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    ENTER,
    HOLDFAST,
    SECONDS,
    UP,
    make_environment,
    opened_terminal,
    run_piped,
)

KEY = "key-of-the-terminal-tests"


class Shared:
    """A server that the tests of this file share, each with sessions of its own."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.base_url = process.base_url
        self.variables = {"HOLDFAST_SERVER": process.base_url, "HOLDFAST_API_KEY": KEY}

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST when there is a body."""
        request = urllib.request.Request(
            self.base_url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def run(self, run: str) -> Any:
        return self.ask(f"/v1/runs/{run}")

    def newest(self) -> Any:
        """The run that was started last, whole."""
        return self.run(self.ask("/v1/runs?limit=1")["data"][0]["id"])

    def ended(self, run: str) -> Any:
        """Wait until a run has ended."""
        deadline = time.monotonic() + SECONDS
        while (found := self.run(run))["outcome"] is None:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, env={"HOLDFAST_API_KEY": KEY}, arguments=("--chaos",)) as process:
        yield Shared(process)


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A server whose tools need approval."""
    folder = tmp_path_factory.mktemp("asking")
    with running_server(folder, '[agent]\napproval = "ask"\n', env={"HOLDFAST_API_KEY": KEY}) as process:
        yield Shared(process)


class TestConversation:
    def test_ctrl_c_stops_the_answer_keeps_what_came_and_a_second_one_leaves(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T1.a, T1.b: text streams as it comes; Ctrl-C stops the answer and keeps it, a second Ctrl-C leaves."""
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:
            terminal.await_prompt()
            terminal.say("count slowly to 500")
            terminal.expect(r"\n1 2 3 ")
            going = shared.newest()
            assert going["status"] == "running", "the text is there before the answer is"
            assert going["text"].startswith("1 2 3")
            terminal.keys(CTRL_C)
            said = terminal.expect(r"■ Stopped \(user\): The run was stopped on request\. The (\d+) characters .* kept")
            kept = shared.run(going["id"])
            assert (kept["outcome"], kept["reason"]) == ("cancelled", "user")
            assert len(kept["text"]) == int(said[1])
            assert kept["text"].rstrip() in terminal.screen
            terminal.await_prompt()
            terminal.keys(CTRL_C)
            assert terminal.exit_code() == 130

    def test_a_second_ctrl_c_leaves_although_the_server_does_not_answer(self, tmp_path: Path) -> None:
        """T1.b: a second Ctrl-C leaves, whatever has become of the server."""
        with running_server(tmp_path / "server") as process:
            with opened_terminal(tmp_path, "chat", "count slowly to 500", "--server", process.base_url) as terminal:
                terminal.expect(r"\n1 2 ")
                os.kill(process.pid, signal.SIGSTOP)
                try:
                    terminal.keys(CTRL_C)
                    terminal.expect("Stopping; Ctrl-C again to leave")
                    terminal.keys(CTRL_C)
                    assert terminal.exit_code() == 130
                finally:
                    os.kill(process.pid, signal.SIGCONT)

    def test_one_ctrl_c_leaves_while_there_is_nothing_to_stop(self, tmp_path: Path) -> None:
        """T1.b: a server that takes the connection and never answers does not hold anybody."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(SECONDS)
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            with opened_terminal(tmp_path, "chat", "hello", "--server", address) as terminal:
                connection, _ = silent.accept()
                with connection:
                    terminal.keys(CTRL_C)
                    assert terminal.exit_code() == 130
                    assert "Traceback" not in terminal.screen

    def test_a_ctrl_c_that_there_was_nothing_to_stop_for_does_not_stop_the_next_answer(self, tmp_path: Path) -> None:
        """T1.b: Ctrl-C stops the answer that it was pressed at; if that never began, it is over with its question."""
        with running_server(tmp_path / "server", "[server]\nstrict_models = true\n") as process:
            with opened_terminal(tmp_path, "chat", "--model", "nobody/knows", "--server", process.base_url) as terminal:
                terminal.await_prompt()
                os.kill(process.pid, signal.SIGSTOP)
                try:
                    terminal.say("hello")
                    # The prompt has given back the terminal, in which Ctrl-C is a signal again.
                    terminal.expect(r"› hello\s*\n")
                    time.sleep(0.3)
                    terminal.keys(CTRL_C)
                    terminal.expect(r"\^C")
                    time.sleep(0.3)
                finally:
                    os.kill(process.pid, signal.SIGCONT)
                terminal.expect("nobody/knows")
                terminal.await_prompt()
                terminal.say("/model demo")
                terminal.await_prompt()
                terminal.say("count slowly to 12")
                terminal.expect(r"\n1 2 3 .* 11 12\n")
                assert "Stopping" not in terminal.screen
                terminal.await_prompt()
                terminal.keys(CTRL_D)
                assert terminal.exit_code() == 0

    def test_without_colour_there_is_none(self, shared: Shared, tmp_path: Path) -> None:
        """T1.a: --no-color."""
        with opened_terminal(tmp_path, "chat", "--no-color", "run echo grey", **shared.variables) as terminal:
            assert terminal.exit_code() == 0
            assert "✓ terminal echo grey" in terminal.screen
            assert not re.search(r"\x1b\[[0-9;]*m", terminal.raw)

    def test_reasoning_is_dim_and_each_tool_is_one_line_with_a_spinner_and_its_duration(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T1.a: reasoning dimmed, tools one line each with a spinner and their duration."""
        with opened_terminal(tmp_path, "chat", "run sleep 0.7", **shared.variables) as terminal:
            assert terminal.exit_code() == 0
            assert "\x1b[2;3mI \x1b[0m" in terminal.raw
            spun = re.findall(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] terminal sleep 0\.7", terminal.screen)
            assert len(set(spun)) > 2
            assert len(re.findall(r"✓ terminal sleep 0\.7 \((?:\d+ ms|1\.\d s)\)\n", terminal.screen)) == 1
            assert re.search(r"demo · \d+ tokens in, \d+ out · ", terminal.screen)

    def test_a_tool_that_fails_and_a_call_that_broke_off_are_shown_as_what_they_are(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T1.a, R2.b: dropped calls and honest endings are told, in colour."""
        with opened_terminal(tmp_path, "chat", "run exit 3", **shared.variables) as terminal:
            terminal.exit_code()
            assert re.search(r"\x1b\[31m✗ terminal exit 3 \(", terminal.raw), terminal.raw
        with opened_terminal(
            tmp_path, "chat", "--model", "chaos/cut_tool_call", "hello", **shared.variables
        ) as terminal:
            assert terminal.exit_code() == 3
            assert re.search(r"\x1b\[31m✗ \w+ was not carried out: its call broke off after \d+ bytes", terminal.raw)
            assert re.search(r"\x1b\[33m▲ Incomplete \(stream_interrupted\)", terminal.raw)

    def test_no_word_is_broken_at_the_edge_of_the_window(self, shared: Shared, tmp_path: Path) -> None:
        """T1.a: text is shown as it comes, and lines end between words."""
        with opened_terminal(tmp_path, "chat", "What can you do?", COLUMNS="31", **shared.variables) as terminal:
            assert terminal.exit_code() == 0
        answer = shared.newest()["text"]
        screen = Screen(31)
        screen.write(terminal.raw)
        words = " ".join(screen.lines).split()
        assert max(map(len, screen.lines)) <= 31
        assert len(answer.split()) > 20
        assert [word for word in answer.split() if len(word) <= 31 and word not in words] == []

    def test_the_window_may_be_resized_at_any_time(self, shared: Shared, tmp_path: Path) -> None:
        """T1.a: resizing breaks nothing: at the prompt, under the spinner, in the text."""
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:
            terminal.await_prompt()
            terminal.resize(20, 40)
            terminal.say("run sleep 1.5")
            terminal.expect("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] terminal")
            for columns in (20, 5, 1, 200):
                terminal.resize(10, columns)
                terminal.expect("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]")
            terminal.expect(r"✓ terminal sleep 1\.5 ")
            terminal.await_prompt()
            terminal.resize(30, 100)
            terminal.say("count to 5")
            terminal.expect(r"1 2 3 4 5\n")
            assert terminal.leave() == 0
            assert "Traceback" not in terminal.screen

    def test_what_was_typed_comes_back_and_is_its_owners_alone(self, shared: Shared, tmp_path: Path) -> None:
        """T1.b, T1.c: history; several lines are one question; at the prompt Ctrl-C twice leaves."""
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:
            terminal.await_prompt()
            terminal.keys(f"count to 4{ALT_ENTER}please{ENTER}")
            terminal.expect(r"1 2 3 4\n")
            terminal.await_prompt()
            assert shared.newest()["input"] == [{"role": "user", "content": "count to 4\nplease"}]
            terminal.keys("never sent")
            terminal.expect("never sent")
            terminal.keys(CTRL_C)
            terminal.keys(CTRL_C)
            terminal.expect("Ctrl-C again, or Ctrl-D, leaves")
            terminal.await_prompt()
            terminal.keys(CTRL_C)
            assert terminal.exit_code() == 130
        history = tmp_path / "data" / "chat_history"
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:
            terminal.await_prompt()
            terminal.keys(UP + ENTER)
            terminal.expect(r"1 2 3 4\n")
            terminal.await_prompt()
            terminal.say("/quit")
            assert terminal.exit_code() == 0

    def test_what_is_typed_during_an_answer_does_not_get_into_it_and_is_there_at_the_next_prompt(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T1.a: keys are not echoed into the text that streams, and the terminal is left as it was."""
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:
            terminal.await_prompt()
            terminal.say("count slowly to 40")
            terminal.expect(r"\n1 2 3 ")
            terminal.keys("count to 2")
            answer = terminal.expect(r"(.*) 39 40\n")[1]
            assert "count" not in answer
            terminal.await_prompt()
            terminal.expect("count to 2")
            terminal.keys(ENTER)
            terminal.expect(r"\n1 2\n")
            terminal.await_prompt()
            assert terminal.leave() == 0
        with opened_terminal(tmp_path, "chat", "count to 2", **shared.variables) as terminal:
            assert terminal.exit_code() == 0
            assert terminal.echoes

    def test_commands_list_switch_and_repeat(self, shared: Shared, tmp_path: Path) -> None:
        """T1.c: sessions can be listed, left, resumed and retried from the prompt; the model can be changed."""
        with opened_terminal(tmp_path, "chat", **shared.variables) as terminal:

            def say(line: str, answer: str) -> re.Match[str]:
                terminal.await_prompt()
                terminal.say(line)
                return terminal.expect(answer)

            say("/help", "/retry .* ask the last question again")
            say("/retry", "Nothing has been asked")
            say("/stop", "Nothing is going on")
            say("/nonsense", "There is no command /nonsense")
            say("count to 3", r"1 2 3\n.*demo ·")
            first = shared.newest()["session_id"]
            say("count to 6", r"1 2 3 4 5 6\n.*demo ·")
            say("/retry", r"1 2 3 4 5 6\n.*demo ·")
            copy = shared.newest()["session_id"]
            assert copy != first
            said = [m["content"].strip() for m in shared.ask(f"/v1/sessions/{copy}/messages")["data"]]
            assert said == ["count to 3", "1 2 3", "count to 6", "1 2 3 4 5 6"]
            say("/new", "A new session")
            say("/runs", "no runs yet")
            say("/model chaos/truncated", "chaos/truncated is asked from now on")
            say("hello", r"▲ Incomplete \(max_output_tokens\)")
            assert shared.newest()["session_id"] not in (first, copy)
            say("/model", r"› chaos/truncated")
            say("/sessions", re.escape(first))
            say(f"/resume {first}", r"› count to 6\n1 2 3 4 5 6")
            say("/runs", r"completed .*completed ")
            terminal.await_prompt()
            terminal.say("/quit")
            assert terminal.exit_code() == 0

    def test_a_session_is_resumed_with_its_history_and_a_run_that_goes_on_is_followed(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T1.b, T1.c: resume a session; the answer that is still being given is picked up where it is."""
        session = shared.ask("/v1/sessions", {"title": "The tides of March"})["id"]
        first = shared.ask("/v1/runs", {"input": "count to 7", "session_id": session})["run_id"]
        shared.ended(first)
        going = shared.ask("/v1/runs", {"input": "count slowly to 400", "session_id": session})["run_id"]
        with opened_terminal(tmp_path, "chat", "--resume", "tides of March", **shared.variables) as terminal:
            terminal.expect(f"Session {session}: The tides of March")
            terminal.expect(r"1 2 3 4 5 6 7 8 ")
            terminal.keys(CTRL_C)
            terminal.expect(r"■ Stopped \(user\)")
            assert shared.run(going)["reason"] == "user"
            terminal.await_prompt()
            terminal.say("count to 2")
            terminal.expect(r"\n1 2\n")
            terminal.await_prompt()
            terminal.keys(CTRL_D)
            assert terminal.exit_code() == 0
        asked = [m["content"] for m in shared.ask(f"/v1/sessions/{session}/messages")["data"] if m["role"] == "user"]
        assert asked == ["count to 7", "count slowly to 400", "count to 2"]

    def test_a_session_goes_on_with_its_own_model(self, shared: Shared, tmp_path: Path) -> None:
        """T1.f: a session goes on with its own model, in a pipe and at the prompt, unless another is chosen."""
        session = shared.ask("/v1/sessions", {"title": "The model of March"})["id"]
        body = {"input": "hello", "session_id": session, "model": "chaos/truncated"}
        shared.ended(shared.ask("/v1/runs", body)["run_id"])

        assert run_piped(tmp_path, "chat", "--resume", session, "again", **shared.variables).returncode == 3
        assert shared.newest()["model"] == "chaos/truncated"
        assert run_piped(tmp_path, "chat", "--continue", "more", **shared.variables).returncode == 3
        assert (shared.newest()["session_id"], shared.newest()["model"]) == (session, "chaos/truncated")

        with opened_terminal(tmp_path, "chat", "--resume", "model of March", **shared.variables) as terminal:
            terminal.expect(f"Session {session}: The model of March, 6 messages, on chaos/truncated")
            for line, answer in (
                ("and more", r"▲ Incomplete \(max_output_tokens\)"),
                ("/model demo", "demo is asked from now on"),
                ("count to 3", r"1 2 3\n.*demo ·"),
                ("/new", "A new session"),
            ):
                terminal.await_prompt()
                terminal.say(line)
                terminal.expect(answer)
            terminal.await_prompt()
            assert terminal.leave() == 0
        assert (
            run_piped(tmp_path, "chat", "--resume", session, "--model", "demo", "hi", **shared.variables).returncode
            == 0
        )
        assert run_piped(tmp_path, "chat", "--resume", session, "hi", **shared.variables).returncode == 0
        assert shared.newest()["model"] == "demo"

    def test_approvals_are_asked_for_in_place(self, asking: Shared, tmp_path: Path) -> None:
        """R12.a: a call that needs approval is shown with its arguments; y, n and a are answers, nothing else is."""
        with opened_terminal(tmp_path, "chat", **asking.variables) as terminal:
            terminal.await_prompt()
            terminal.say("run echo first")
            terminal.expect(r'\? terminal \{"command":"echo first"\} needs approval')
            terminal.expect("Allow terminal")
            terminal.keys(ENTER + "x" + "y")
            terminal.expect(r"✓ terminal echo first")
            terminal.await_prompt()
            terminal.await_prompt()
            terminal.say("run echo second")
            terminal.expect("Allow terminal")
            terminal.keys("n")
            terminal.expect(r"✗ terminal: The user denied this call; it was not carried out")
            terminal.await_prompt()
            terminal.await_prompt()
            terminal.say("run echo third")
            terminal.expect("Allow terminal")
            terminal.keys("a")
            terminal.expect(r"✓ terminal echo third")
            terminal.await_prompt()
            terminal.await_prompt()
            terminal.say("run echo fourth")
            terminal.expect(r"✓ terminal echo fourth")
            terminal.await_prompt()
            terminal.keys(CTRL_D)
            assert terminal.exit_code() == 0
            assert terminal.screen.count("Allow terminal") >= 3

    def test_an_approval_that_somebody_else_gives_closes_the_question(self, asking: Shared, tmp_path: Path) -> None:
        """R12.a, T1.b: from any client: nobody is waited for when the answer has been given; Ctrl-C there stops."""
        with opened_terminal(tmp_path, "chat", **asking.variables) as terminal:
            terminal.await_prompt()
            terminal.say("run echo elsewhere")
            terminal.expect("Allow terminal")
            asking.ask(f"/v1/runs/{asking.newest()['id']}/approval", {"approved": True})
            terminal.expect(r"✓ terminal echo elsewhere")
            terminal.await_prompt()
            terminal.await_prompt()
            terminal.say("run echo never")
            terminal.expect("Allow terminal")
            terminal.keys(CTRL_C)
            terminal.expect(r"■ Stopped \(user\)")
            assert asking.newest()["tools"] == []

    def test_without_a_server_the_agent_is_opened_here_and_its_store_is_the_servers(self, tmp_path: Path) -> None:
        """T1.c, T1.d: works on a local agent; what was said there is there for the next command."""
        with opened_terminal(tmp_path, "chat") as terminal:
            terminal.await_prompt()
            terminal.say("count to 3")
            terminal.expect(r"1 2 3\n")
            terminal.await_prompt()
            terminal.keys(CTRL_D)
            assert terminal.exit_code() == 0
        said = run_piped(tmp_path, "chat", "--continue", "--json", "count to 4")
        assert said.returncode == 0, said.stderr
        list_command = run_piped(tmp_path, "runs", "--json")
        assert list_command.returncode == 0, list_command.stderr
        listed = json.loads(list_command.stdout)
        assert [run["text"].strip() for run in listed] == ["1 2 3 4", "1 2 3"]
        assert len({run["session_id"] for run in listed}) == 1

    def test_a_server_that_runs_where_the_settings_say_is_used(self, shared: Shared, tmp_path: Path) -> None:
        """T1.d: without --server the one that runs here is used, and no second agent is opened."""
        port = shared.base_url.rpartition(":")[2]
        said = run_piped(tmp_path, "chat", "count to 3", HOLDFAST_PORT=port, HOLDFAST_API_KEY=KEY)
        assert (said.returncode, said.stdout) == (0, "1 2 3\n")
        assert shared.newest()["input"][0]["content"] == "count to 3"
        assert not (tmp_path / "data").exists()

    def test_a_server_on_any_port_is_found_by_its_store(self, tmp_path: Path) -> None:
        """T1.e: the store says who has it and where; doctor may look meanwhile; then an agent is opened here."""
        with running_server(tmp_path, env={"HOLDFAST_API_KEY": KEY}) as server:
            said = run_piped(tmp_path, "chat", "count to 3", HOLDFAST_API_KEY=KEY)
            assert (said.returncode, said.stdout) == (0, "1 2 3\n"), said.stderr
            newest = Shared(server).newest()
            assert newest["input"][0]["content"] == "count to 3"
            assert stat.S_IMODE((tmp_path / "data" / "holdfast.db.lock").stat().st_mode) == 0o600
            assert "holdfast.db, " in run_piped(tmp_path, "doctor").stdout
            server.kill()
        listed = run_piped(tmp_path, "runs", "--json", HOLDFAST_API_KEY=KEY)
        assert [run["id"] for run in json.loads(listed.stdout)] == [newest["id"]], listed.stderr

    def test_a_stranger_on_that_port_is_not_shown_the_key(self, tmp_path: Path) -> None:
        """T1.d: who listens there is found out first; if it is not one of ours, an agent is opened here."""
        asked: list[dict[str, str]] = []

        class Stranger(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append({name.lower(): value for name, value in self.headers.items()})
                self.send_error(404)

            def log_message(self, format: str, *args: object) -> None:
                """Not to the test's output."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
            serving = threading.Thread(target=stranger.serve_forever)
            serving.start()
            try:
                port = str(stranger.server_address[1])
                said = run_piped(tmp_path, "chat", "count to 3", HOLDFAST_PORT=port, HOLDFAST_API_KEY=KEY)
            finally:
                stranger.shutdown()
                serving.join()
        assert (said.returncode, said.stdout) == (0, "1 2 3\n"), said.stderr
        assert asked, "nobody has looked there"
        assert not [headers for headers in asked if "authorization" in headers]
        assert KEY not in str(asked)


class TestPipe:
    def test_only_the_answer_is_on_standard_output(self, shared: Shared, tmp_path: Path) -> None:
        """T1.a: in a pipe the answer alone, without colour and spinner; notes on standard error; exit code 0."""
        said = run_piped(tmp_path, "chat", given="run echo from the pipe", **shared.variables)
        assert said.returncode == 0, said.stderr
        assert said.stdout == shared.newest()["text"]
        assert "from the pipe" in said.stdout
        assert re.fullmatch(r"✓ terminal echo from the pipe \([^)]*\)\n", said.stderr)
        assert "\x1b" not in said.stdout + said.stderr

    def test_what_the_pipe_cannot_take_is_replaced(self, shared: Shared, tmp_path: Path) -> None:
        """T1.a: an answer that this pipe has no letters for is still shown, as far as it can be."""
        said = run_piped(tmp_path, "chat", "run echo größe", PYTHONIOENCODING="ascii", **shared.variables)
        assert said.returncode == 0, said.stderr
        assert "gr??e" in said.stdout
        assert said.stderr.startswith("? terminal echo gr??e")

    def test_words_and_a_pipe_are_one_question(self, shared: Shared, tmp_path: Path) -> None:
        """T1.d: `cat file | holdfast chat summarise this`."""
        run_piped(tmp_path, "chat", "count", "to", "2", given="a file\nof two lines\n", **shared.variables)
        assert shared.newest()["input"][0]["content"] == "count to 2\n\na file\nof two lines\n"

    @pytest.mark.parametrize(
        ("model", "code", "note"),
        [
            ("chaos/none", 0, ""),
            ("chaos/truncated", 3, "▲ Incomplete (max_output_tokens)"),
            ("chaos/die_after", 3, "▲ Incomplete (stream_interrupted)"),
            ("chaos/cut_tool_call", 3, "▲ Incomplete (stream_interrupted)"),
            ("chaos/401", 4, "✗ Failed (upstream_error): Incorrect API key provided. No text had come."),
        ],
    )
    def test_the_exit_code_says_how_it_ended(
        self, shared: Shared, tmp_path: Path, model: str, code: int, note: str
    ) -> None:
        """R2.b, T6: exit codes: 0 complete, 3 partial, 4 failed; the reason is told and what came is kept."""
        said = run_piped(tmp_path, "chat", "--model", model, "hello", **shared.variables)
        assert said.returncode == code, said.stderr
        assert note in said.stderr
        kept = shared.newest()
        assert said.stdout.strip() == kept["text"].strip()
        assert (kept["outcome"] == "completed") == (code == 0)

    def test_json_is_the_log_and_a_summary(self, shared: Shared, tmp_path: Path) -> None:
        """R1.b, R2.b: with --json every event is a line, the last sums up, and failure is not success there either."""
        said = run_piped(tmp_path, "chat", "--json", "count to 3", **shared.variables)
        assert said.returncode == 0, said.stderr
        *events, summary = [json.loads(line) for line in said.stdout.splitlines()]
        assert [event["number"] for event in events] == list(range(len(events)))
        assert (events[0]["type"], events[-1]["type"]) == ("run.started", "run.ended")
        assert "".join(event["text"] for event in events if event["type"] == "text.added") == "1 2 3\n"
        run = shared.newest()
        assert {name: summary[name] for name in ("run_id", "session_id", "outcome", "reason", "text", "model")} == {
            "run_id": run["id"],
            "session_id": run["session_id"],
            "outcome": "completed",
            "reason": None,
            "text": "1 2 3\n",
            "model": "demo",
        }
        assert summary["usage"] == run["usage"]
        failed = run_piped(tmp_path, "chat", "--json", "--model", "chaos/500", "hello", **shared.variables)
        assert failed.returncode == 4, failed.stderr
        last = json.loads(failed.stdout.splitlines()[-1])
        assert (last["outcome"], last["reason"], last["text"]) == ("failed", "upstream_error", "")

    def test_nobody_can_be_asked_in_a_pipe_so_the_call_is_denied_at_once(self, asking: Shared, tmp_path: Path) -> None:
        """T1.g, R12.c: in a pipe approvals are denied at once; log, model and user are told that nobody was asked."""
        said = run_piped(tmp_path, "chat", "--json", given="run echo never", **asking.variables)
        assert said.returncode == 0, said.stderr
        events = [json.loads(line) for line in said.stdout.splitlines()]
        answers = [(e["approved"], e["by"]) for e in events if e.get("type") == "approval.answered"]
        assert answers == [(False, "nobody")]
        told = next(e["output"] for e in events if e.get("type") == "tool.finished")
        assert told == "This call needs approval and there is nobody to ask; it was not carried out."
        assert asking.newest()["tools"] == []
        said = run_piped(tmp_path, "chat", given="run echo never", **asking.variables)
        assert "denied: there is nobody to ask" in said.stderr
        assert "The user denied" not in said.stdout + said.stderr

    def test_yes_approves_what_nobody_can_be_asked_about(self, asking: Shared, tmp_path: Path) -> None:
        """T1.g, R12.a: --yes is the user's word, and the log has it as that."""
        said = run_piped(tmp_path, "chat", "--yes", "--json", given="run echo allowed", **asking.variables)
        assert said.returncode == 0, said.stderr
        events = [json.loads(line) for line in said.stdout.splitlines()]
        answers = [(e["approved"], e["by"]) for e in events if e.get("type") == "approval.answered"]
        assert answers == [(True, "client")]
        assert [tool["status"] for tool in asking.newest()["tools"]] == ["completed"]

    def test_an_earlier_answer_that_is_not_whole_is_shown_as_that(self, shared: Shared, tmp_path: Path) -> None:
        """R2.e, T1.c, T2.a: by --continue, by --resume, by `runs show`; with words of it and without."""
        cut = shared.ask("/v1/runs", {"input": "hello", "model": "chaos/die_after-2", "session_id": "cut"})["run_id"]
        none = shared.ask("/v1/runs", {"input": "hello", "model": "chaos/400", "session_id": "none"})["run_id"]
        shared.ended(cut)
        shared.ended(none)
        text = shared.run(cut)["text"].strip()
        shown = run_piped(tmp_path, "runs", "show", cut, **shared.variables).stdout
        mark = r"▲ Incomplete \(stream_interrupted\): this answer is not whole\."
        assert re.search(rf"answer +{text}\s+{mark}\n", shown)
        with opened_terminal(tmp_path, "chat", "--resume", "cut", **shared.variables) as terminal:
            terminal.expect("› hello")
            terminal.expect(text)
            terminal.expect(mark)
            terminal.await_prompt()
            terminal.say("/resume none")
            terminal.expect("› hello")
            terminal.expect(r"✗ Failed \(upstream_error\): no answer came\.")
            terminal.await_prompt()
            terminal.keys(CTRL_D)
            assert terminal.exit_code() == 0
        stopped = shared.ask("/v1/runs", {"input": "count slowly to 400", "session_id": "halted"})["run_id"]
        shared.ask(f"/v1/runs/{stopped}/stop", {})
        with opened_terminal(tmp_path, "chat", "--continue", **shared.variables) as terminal:
            terminal.expect(r"■ Stopped \(user\): (this answer is not whole|no answer came)\.")
            terminal.await_prompt()
            terminal.keys(CTRL_D)

    def test_when_the_reader_leaves_the_run_is_stopped_and_nothing_is_said(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """R5.a: `holdfast chat ... | head` ends quietly and stops the run."""
        process = subprocess.Popen(
            [*HOLDFAST, "chat", "count slowly to 500"],
            cwd=tmp_path,
            env=make_environment(tmp_path, **shared.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(2) == b"1 "
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(timeout=SECONDS) == 141
        kept = shared.newest()
        assert (kept["outcome"], kept["reason"]) == ("cancelled", "user")

    @pytest.mark.parametrize(("model", "told"), [("nope/x", "demo was asked, not nope/x.\n"), ("holdfast", "")])
    def test_in_a_pipe_it_is_told_when_another_model_was_asked(
        self, shared: Shared, tmp_path: Path, model: str, told: str
    ) -> None:
        """C16.a, C16.b: an unknown model's question goes to the server's own; the agent's name stands for its model."""
        said = run_piped(tmp_path, "chat", "count to 3", "--model", model, **shared.variables)
        assert (said.stdout, said.stderr, said.returncode) == ("1 2 3\n", told, 0)

    @pytest.mark.parametrize("arguments", [("runs",), ("runs", "show", "last")])
    def test_a_list_whose_reader_has_left_ends_quietly(
        self, shared: Shared, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        """T2.a: `holdfast runs | head -1` is no crash."""
        assert run_piped(tmp_path, "chat", "count to 3", **shared.variables).returncode == 0
        reader, writer = os.pipe()
        os.close(reader)
        try:
            said = subprocess.run(
                [*HOLDFAST, *arguments],
                cwd=tmp_path,
                env=make_environment(tmp_path, **shared.variables),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
            )
        finally:
            os.close(writer)
        assert (said.stderr, said.returncode) == (b"", 141)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_stops_the_run_too(self, shared: Shared, tmp_path: Path, number: signal.Signals) -> None:
        """R5.a: a command that is told to end, or whose window is closed, leaves no run behind."""
        process = subprocess.Popen(
            [*HOLDFAST, "chat", "count slowly to 500"],
            cwd=tmp_path,
            env=make_environment(tmp_path, **shared.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.read(2) == b"1 "
        process.send_signal(number)
        assert process.wait(timeout=SECONDS) == 128 + number
        process.stdout.close()
        assert shared.newest()["reason"] == "user"

    def test_a_question_takes_its_options_along_and_dies_with_its_command(self, tmp_path: Path) -> None:
        """T1.d, C17.a: --model, --system and the session reach the server; 30 seconds to come back in, and no more."""
        asked: list[tuple[str, object]] = []
        session = {"id": "s-1", "title": "Tides", "created_at": 0, "updated_at": 0, "runs": 1}
        started = {"run_id": "run_1", "session_id": "s-1", "status": "queued", "model": "m"}
        end = b'id: 0\nevent: run.ended\ndata: {"type": "run.ended", "outcome": {"outcome": "completed"}}\n\n'
        answers = {
            "/health": {"status": "ok", "platform": "holdfast", "version": "0"},
            "/v1/sessions": {"data": [session]},
            "/v1/sessions/s-1": session,
            "/v1/runs": started,
        }

        class Scripted(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                body = end if path.endswith("/events") else json.dumps(answers[path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Not to the test's output."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as scripted:
            serving = threading.Thread(target=scripted.serve_forever)
            serving.start()
            try:
                server = f"127.0.0.1:{scripted.server_address[1]}"
                options = ("--model", "m", "--system", "Be brief.", "--resume", "s-1", "--server", server)
                said = run_piped(tmp_path, "chat", *options, "hello", "there")
                assert (said.returncode, said.stderr) == (0, "")
                said = run_piped(tmp_path, "chat", "--continue", "--server", server, "again")
                assert (said.returncode, said.stderr) == (0, "")
            finally:
                scripted.shutdown()
                serving.join()
        # R15.a: it dies with its command, and not with a server that comes back while the command waits.
        lives = {"on_disconnect": 30, "on_restart": "resume"}
        first = {"model": "m", "instructions": "Be brief.", "session_id": "s-1", **lives}
        assert asked == [
            ("/v1/runs", {"input": "hello there", **first}),
            ("/v1/runs", {"input": "again", "session_id": "s-1", **lives}),
        ]

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (("chat",), 2, "There is nothing to ask"),
            (("chat", "hi", "--resume", "a", "--continue"), 2, "give one"),
            (("chat", "hi", "--server", "ftp://x"), 2, "must be an address such as http://127.0.0.1:8642"),
            (("chat", "hi", "--server", "http://127.0.0.1:9"), 1, "127.0.0.1:9 cannot be reached (connection refused)"),
            (("chat", "hi", "--resume", "no-such-session"), 1, "There is no session no-such-session"),
            (("runs", "show"), 2, "Which run?"),
            (("runs", "list", "run_1"), 2, "list takes no run; holdfast runs show run_1 shows one"),
            (("runs", "stop", "run_none"), 1, "There is no run run_none"),
            (("runs", "show", "run_none"), 1, "There is no run run_none"),
            (("runs", "tail", "run_none"), 1, "There is no run run_none"),
        ],
    )
    def test_what_cannot_be_done_is_said_in_a_sentence(
        self, shared: Shared, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
    ) -> None:
        """T1.c, T1.d, T2.a: exit code 2 for wrong usage, 1 for what could not be done; no stack trace."""
        said = run_piped(tmp_path, *arguments, **shared.variables)
        assert (said.returncode, said.stdout) == (code, "")
        assert says in said.stderr
        assert "Traceback" not in said.stderr

    def test_a_wrong_key_is_told_and_not_shown(self, shared: Shared, tmp_path: Path) -> None:
        """T1.d: remote keys come from HOLDFAST_API_KEY; a wrong one is never repeated."""
        variables = {**shared.variables, "HOLDFAST_API_KEY": "a-wrong-key"}
        said = run_piped(tmp_path, "chat", "hello", **variables)
        assert said.returncode == 1
        assert "Set HOLDFAST_API_KEY to the server's key" in said.stderr
        assert "a-wrong-key" not in said.stderr


class TestRuns:
    def test_a_run_is_found_by_the_beginning_of_its_id(self, shared: Shared, tmp_path: Path) -> None:
        """T2.d: id prefixes: a unique one is enough, in any of its clothes; for others the candidates are listed."""
        first, second = (shared.ask("/v1/runs", {"input": "hello"})["run_id"] for _ in range(2))
        shared.ended(first)
        shared.ended(second)
        same = first[: next(place for place, pair in enumerate(zip(first, second, strict=True)) if len(set(pair)) == 2)]
        unique = first[: len(same) + 1]
        for name in (unique, unique.removeprefix("run_"), f"resp_{unique[4:]}", f"chatcmpl-{first[4:]}"):
            shown = run_piped(tmp_path, "runs", "show", name, "--json", **shared.variables)
            assert json.loads(shown.stdout)["id"] == first, shown.stderr
        several = run_piped(tmp_path, "runs", "show", same, **shared.variables)
        assert several.returncode == 1
        assert f"Several runs have an id that begins with {same}:" in several.stderr
        assert re.search(rf"^  {second}  completed  \d.*\n  {first}  completed", several.stderr, re.MULTILINE)

    def test_a_call_that_waits_is_approved_and_denied(self, asking: Shared, tmp_path: Path) -> None:
        """T2.c: `runs approve`, with --deny, and --call when several wait."""
        for more, word, executed in (((), "approved", ["yes"]), (("--deny",), "denied", [])):
            run = asking.ask("/v1/runs", {"input": "run echo waited"})["run_id"]
            while not (waiting := asking.run(run)["approvals"]):
                time.sleep(0.02)
            wrong = run_piped(tmp_path, "runs", "approve", run, "--call", "call_none", **asking.variables)
            assert (wrong.returncode, "does not wait for approval of the call call_none" in wrong.stderr) == (1, True)
            call = waiting[0]["call_id"]
            said = run_piped(tmp_path, "runs", "approve", run, *more, "--call", call, **asking.variables)
            assert (said.returncode, said.stderr) == (0, "")
            assert re.fullmatch(rf"terminal .*echo waited.* is {word}\.\n", said.stdout)
            assert [tool["executed"] for tool in asking.ended(run)["tools"]] == executed
            late = run_piped(tmp_path, "runs", "approve", run, **asking.variables)
            assert (late.returncode, "does not wait for approval of a call" in late.stderr) == (1, True)

    @pytest.mark.parametrize(
        ("line", "offered", "not_offered"),
        [
            ("holdfast ", {"serve", "chat", "runs", "doctor"}, {"list"}),
            ("holdfast runs ", {"list", "show", "tail", "stop", "approve"}, {"serve"}),
            ("holdfast runs ap", {"approve"}, {"list"}),
            ("holdfast chat --co", {"--continue", "--config"}, {"--model"}),
        ],
    )
    def test_a_shell_can_complete_the_line(
        self, tmp_path: Path, line: str, offered: set[str], not_offered: set[str]
    ) -> None:
        """T2.e: shell completion of commands, words and options."""
        words = line.split(" ")
        asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        # A shell calls the command by its name, which is what the variable is named after.
        said = subprocess.run(
            [str(Path(sys.executable).with_name("holdfast"))],
            env=make_environment(tmp_path, **asked),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        found = set(said.stdout.split())
        assert offered <= found and found.isdisjoint(not_offered), said

    def test_runs_are_listed_filtered_and_shown(self, shared: Shared, tmp_path: Path) -> None:
        """T2.a: `holdfast runs` lists; show tells outcome, time, tokens, messages and tools."""
        session = shared.ask("/v1/sessions", {})["id"]
        whole = shared.ask("/v1/runs", {"input": "run echo listed", "session_id": session})["run_id"]
        shared.ended(whole)
        body = {"input": "hello", "session_id": session, "model": "chaos/truncated"}
        partial = shared.ask("/v1/runs", body)["run_id"]
        shared.ended(partial)

        listed = run_piped(tmp_path, "runs", "--session", session, **shared.variables)
        assert listed.returncode == 0
        newest, oldest = listed.stdout.splitlines()
        assert newest.startswith(f"{partial}  incomplete (max_output_tokens)  ")
        assert oldest.startswith(f"{whole}  completed ")
        filtered = run_piped(
            tmp_path, "runs", "list", "--session", session, "--status", "incomplete", "--json", **shared.variables
        )
        assert [run["id"] for run in json.loads(filtered.stdout)] == [partial]
        limited = run_piped(tmp_path, "runs", "--session", session, "--limit", "1", **shared.variables)
        assert len(limited.stdout.splitlines()) == 1

        shown = run_piped(tmp_path, "runs", "show", whole, **shared.variables).stdout
        assert re.search(r"^status +completed$", shown, re.MULTILINE)
        assert re.search(r"^time +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, ", shown, re.MULTILINE)
        assert re.search(r"^usage +demo · \d+ tokens in, \d+ out$", shown, re.MULTILINE)
        assert re.search(r"^tool +terminal echo listed: completed, ", shown, re.MULTILINE)
        assert re.search(r"^user +run echo listed$", shown, re.MULTILINE)
        assert "`terminal` says" in shown
        told = run_piped(tmp_path, "runs", "show", partial, **shared.variables).stdout
        assert re.search(r"^status +incomplete \(max_output_tokens\)\n +The answer was cut off", told, re.MULTILINE)
        as_json = json.loads(run_piped(tmp_path, "runs", "show", whole, "--json", **shared.variables).stdout)
        assert (as_json["usage"], as_json["text"]) == (shared.run(whole)["usage"], shared.run(whole)["text"])

    def test_a_run_is_followed_live_while_another_command_stops_it(self, shared: Shared, tmp_path: Path) -> None:
        """T2.a, R5.b: tail follows to the end and exits as chat does; stop says what was kept, or that it was late."""
        run = shared.ask("/v1/runs", {"input": "count slowly to 500"})["run_id"]
        with opened_terminal(tmp_path, "runs", "tail", run, **shared.variables) as terminal:
            terminal.expect("1 2 3 ")
            stopped = run_piped(tmp_path, "runs", "stop", run, **shared.variables)
            assert re.fullmatch(rf"Run {run} is stopped; \d+ characters of its answer are kept\.\n", stopped.stdout)
            terminal.expect(r"■ Stopped \(user\)")
            assert terminal.exit_code() == 3
        again = run_piped(tmp_path, "runs", "stop", run, "--json", **shared.variables)
        said = json.loads(again.stdout)
        assert (again.returncode, said["stopped"], said["outcome"]) == (0, False, "cancelled")
        late = run_piped(tmp_path, "runs", "stop", run, **shared.variables)
        assert (late.returncode, late.stdout) == (0, f"Run {run} had ended before: cancelled.\n")

    def test_tail_leaves_the_run_alone_when_it_is_interrupted_and_begins_where_it_is_told(
        self, shared: Shared, tmp_path: Path
    ) -> None:
        """T2.a: Ctrl-C ends tail and not the run; --after N begins after event N."""
        run = shared.ask("/v1/runs", {"input": "count slowly to 30"})["run_id"]
        with opened_terminal(tmp_path, "runs", "tail", run, **shared.variables) as terminal:
            terminal.expect("1 2 ")
            terminal.keys(CTRL_C)
            assert terminal.exit_code() == 130
        assert shared.ended(run)["outcome"] == "completed"
        whole = run_piped(tmp_path, "runs", "tail", run, "--json", **shared.variables)
        lines = [json.loads(line) for line in whole.stdout.splitlines()]
        after = run_piped(tmp_path, "runs", "tail", run, "--after", "9", "--json", **shared.variables)
        assert [json.loads(line) for line in after.stdout.splitlines()][:-1] == lines[10:-1]

    def test_an_answer_that_is_given_while_the_server_is_away_is_not_lost(self, tmp_path: Path) -> None:
        """T1.a, R12.d, R16.c: nobody is asked twice, and the call that waited is carried out when it is back."""
        folder, config = tmp_path / "server", '[agent]\ntools = ["terminal"]\napproval = "ask"\nsandbox = "off"\n'
        with running_server(folder, config) as process:
            url, port = process.base_url, process.base_url.rpartition(":")[2]
            with opened_terminal(tmp_path, "chat", "--server", url, "run echo so be it") as terminal:
                terminal.expect("Allow terminal")
                process.kill()
                terminal.expect("Trying to read on")
                terminal.keys("y")
                terminal.expect("Your answer is given when the server is back.")
                with running_server(folder, config, arguments=("--port", port)):
                    terminal.expect("The server was gone; the run goes on.")
                    terminal.expect("approved")
                    terminal.expect("✓ terminal")
                    assert terminal.exit_code() == 0
        assert "Somebody else" not in terminal.screen

    def test_tail_survives_the_server(self, tmp_path: Path) -> None:
        """T2.a, R16.c, R15.d: the server is killed and started again: tail reads on, and the run to its end."""
        folder = tmp_path / "server"
        with running_server(folder) as process:
            url, port = process.base_url, process.base_url.rpartition(":")[2]
            body = json.dumps({"input": "count slowly to 60"}).encode()
            request = urllib.request.Request(f"{url}/v1/runs", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                run = json.load(answer)["run_id"]
            with opened_terminal(tmp_path, "runs", "tail", run, "--server", url) as terminal:
                terminal.expect("1 2 3 ")
                process.kill()
                terminal.expect("Trying to read on")
                with running_server(folder, arguments=("--port", port)):
                    terminal.expect("The server was gone; the run goes on.")
                    assert terminal.exit_code() == 0
        said = re.sub(
            r"http.*Trying to read on …|↻.*goes on\.|demo · .*", "", terminal.screen[terminal.screen.index("1 2 3 ") :]
        )
        assert re.findall(r"\d+", said) == [str(number) for number in range(1, 61)], "nothing twice, nothing missing"
        assert terminal.screen.count("goes on") == 1
