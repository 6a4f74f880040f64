"""The views of a run, folded from events without a terminal, and the words they use."""

import io
import json
import unicodedata
from collections.abc import Sequence

import pytest

from holdfast.cli.terminal.console import Console, fit_cells
from holdfast.cli.terminal.render import JsonView, PlainView, TerminalView, View
from holdfast.cli.terminal.wording import (
    Line,
    cut,
    describe,
    describe_ending,
    describe_usage,
    seconds,
    sentence,
    visible,
)
from holdfast.client import Entry
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ArgumentsAdded,
    Event,
    FellBack,
    ReasoningAdded,
    RunEnded,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallBegan,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnStarted,
    UpstreamRetried,
    Warned,
)
from holdfast.ids import CallId, EventNumber, RunId, SessionId
from holdfast.messages import Usage, user_says
from holdfast.outcomes import Cancelled, Completed, Failed, Incomplete, Outcome, RequiresAction
from holdfast.testing import ManualClock

CALL = CallId("call_1")
TOOL_RUN: tuple[Event, ...] = (
    RunStarted(run=RunId("run_1"), session=SessionId("s"), model="m"),
    TurnStarted(turn=0, model="m"),
    ReasoningAdded(text="Hm."),
    TextAdded(text="I look."),
    ToolCallBegan(index=0, call_id=CALL, name="terminal"),
    Answered(finish="tool_calls", model="m"),
    ToolStarted(call_id=CALL, name="terminal", arguments="{}", label="terminal ls"),
    ToolFinished(call_id=CALL, name="terminal", output="a\nb", seconds=0.25),
    TurnStarted(turn=1, model="m"),
    TextAdded(text="Two files."),
    Answered(finish="stop", model="m"),
    RunEnded(outcome=Completed(), usage=Usage(input_tokens=3, output_tokens=2)),
)


def show(view: View, events: Sequence[Event]) -> None:
    for number, event in enumerate(events):
        view.add(Entry(EventNumber(number), event, 100.0 + number))


def plain_console(width: int = 60) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(output, {}, width=width), output


class TerminalFile(io.StringIO):
    """Keeps what is written, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def cells(text: str) -> int:
    """How many cells a terminal needs for a text without combining characters."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def test_a_run_reads_from_top_to_bottom() -> None:
    """Text as it is, a line for each tool, the model and its tokens below."""
    console, output = plain_console()
    show(TerminalView(console), TOOL_RUN)
    assert output.getvalue() == ("Hm.\nI look.\n✓ terminal ls (250 ms)\nTwo files.\nm · 3 tokens in, 2 out · 11.0 s\n")


def test_what_a_model_says_cannot_steer_the_terminal() -> None:
    console, output = plain_console()
    bad = "\x1b]0;title\x07\x1b[2J\x9b31m\r\ttab\n"
    events: list[Event] = [
        TextAdded(text=bad),
        ReasoningAdded(text=bad),
        ToolStarted(call_id=CALL, name="t", arguments="", label=bad),
        ToolFinished(call_id=CALL, name="t", output=bad, failed=True),
        Warned(message=bad),
        RunEnded(outcome=Failed(reason="internal", message=bad)),
    ]
    show(TerminalView(console), events)
    shown = output.getvalue()
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\r"}
    assert "␛]0;title␇" in shown
    assert visible("a\nb\tc") == "a\nb\tc"


def test_the_spinner_turns_fits_the_window_and_leaves_nothing_behind() -> None:
    output, clock = TerminalFile(), ManualClock()
    view = TerminalView(Console(output, {}, no_color=True, width=30), clock)
    view.add(Entry(EventNumber(0), ToolStarted(call_id=CALL, name="t", arguments="", label="t " + "潮" * 100), 1.0))
    view.tick()
    first = output.getvalue()
    assert first.startswith("⠋ t 潮潮")
    assert 14 < cells(first) < 30
    view.add(Entry(EventNumber(1), ToolFinished(call_id=CALL, name="t", output="", seconds=0.1), 1.0))
    assert output.getvalue().removeprefix(first).startswith("\r\x1b[2K✓ t 潮")
    ended = output.getvalue()
    assert " ".join(ended.split()).endswith("(100 ms)")
    view.tick()
    assert output.getvalue() == ended, "no spinner where nothing is awaited"


def test_a_pipe_gets_the_answer_and_nothing_else() -> None:
    answer = io.StringIO()
    notes, said = plain_console()
    events = [*TOOL_RUN[:-1], RunEnded(outcome=Incomplete(reason="max_turns"))]
    show(PlainView(answer, notes), events)
    assert answer.getvalue() == "I look.\nTwo files.\n"
    assert said.getvalue().startswith(
        "✓ terminal ls (250 ms)\n▲ Incomplete (max_turns): The run used up its model turns"
    )


def test_json_lines_end_with_a_summary_that_knows_what_was_skipped() -> None:
    output = io.StringIO()
    view = JsonView(output, plain_console()[0])
    for number, event in enumerate(TOOL_RUN):
        entry = Entry(EventNumber(number), event, 100.0)
        view.skip(entry) if number < 10 else view.add(entry)
    *events, summary = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [event["number"] for event in events] == [10, 11]
    assert summary == {
        "run_id": "run_1",
        "session_id": "s",
        "outcome": "completed",
        "reason": None,
        "message": "The run completed.",
        "text": "I look.Two files.",
        "usage": {
            "input_tokens": 3,
            "output_tokens": 2,
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "total_tokens": 5,
        },
        "model": "m",
    }


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Completed(), None),
        (Incomplete(reason="max_output_tokens"), "▲ Incomplete (max_output_tokens): The answer was cut off"),
        (Cancelled(reason="user"), "■ Stopped (user): The run was stopped on request. The 3 characters that came"),
        (Failed(reason="upstream_error", message="No."), "✗ Failed (upstream_error): No. The 3 characters"),
        (RequiresAction(reason="client_tools"), "… Waiting (client_tools)"),
    ],
)
def test_only_success_needs_no_words(outcome: Outcome, line: str | None) -> None:
    told = describe_ending(outcome, "abc")
    assert (told is None) == (line is None)
    assert told is None or told.text.startswith(line or "")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            ToolCallDropped(call_id=CALL, name="w", bytes_received=7),
            "✗ w was not carried out: its call broke off after 7 bytes",
        ),
        (
            ToolCallDropped(call_id=CALL, name="w", bytes_received=7, executed="unknown"),
            "✗ w may or may not have been carried out: its call broke off",
        ),
        (ToolFinished(call_id=CALL, name="w", output="Denied.", failed=True, executed="no"), "✗ w: Denied."),
        (ToolFinished(call_id=CALL, name="w", output="", failed=True, executed="unknown"), "? w: stopped while it ran"),
        (ToolFinished(call_id=CALL, name="w", output="Broken.", failed=True, seconds=2), "✗ w (2.0 s): Broken."),
        (
            ToolCallReady(call_id=CALL, name="pick", arguments='{"a":1}'),
            '→ pick {"a":1}: for the client to carry out',
        ),
        (UpstreamRetried(model="m", attempt=1, error="Lost.", wait_seconds=0.5), "↻ m: Lost. Trying again in 500 ms."),
        (FellBack(from_model="a", to_model="b", error="Down."), "↻ a: Down. b is asked instead."),
        (
            ApprovalAsked(call_id=CALL, name="w", arguments='{"a":1}', seconds=90),
            '? w {"a":1} needs approval, within 1 min 30 s',
        ),
        (ApprovalAnswered(call_id=CALL, approved=False, by="stop"), "  denied"),
        (ApprovalAnswered(call_id=CALL, approved=False, by="timeout"), "  denied: nobody answered in time"),
        (ApprovalAnswered(call_id=CALL, approved=True, by="client"), "  approved"),
        (Steered(message=user_says("more")), "› more"),
        (Warned(message="Careful."), "! Careful."),
    ],
)
def test_what_a_person_should_know_is_a_line(event: Event, line: str) -> None:
    told = describe(event, {})
    assert told is not None
    assert told.text.startswith(line)


@pytest.mark.parametrize(
    ("said", "style"),
    [
        (describe(ToolFinished(call_id=CALL, name="w", output=""), {}), "green"),
        (describe(ToolFinished(call_id=CALL, name="w", output="", failed=True), {}), "red"),
        (describe(ToolFinished(call_id=CALL, name="w", output="", failed=True, executed="no"), {}), "red"),
        (describe(ToolFinished(call_id=CALL, name="w", output="", failed=True, executed="unknown"), {}), "yellow"),
        (describe(ToolCallDropped(call_id=CALL, name="w", bytes_received=7), {}), "red"),
        (describe(Warned(message="Careful."), {}), "yellow"),
        (describe(FellBack(from_model="a", to_model="b", error=""), {}), "yellow"),
        (describe_ending(Incomplete(reason="max_turns"), ""), "yellow"),
        (describe_ending(Cancelled(reason="user"), ""), "yellow"),
        (describe_ending(RequiresAction(reason="client_tools"), ""), "yellow"),
        (describe_ending(Failed(reason="internal", message=""), ""), "red"),
    ],
)
def test_what_did_not_go_well_does_not_look_like_success(said: Line | None, style: str) -> None:
    """R2.b: only success is green."""
    assert said is not None
    assert said.style == style


@pytest.mark.parametrize("outcome", [Incomplete(reason="max_turns"), Cancelled(reason="user")])
def test_an_ending_without_text_does_not_say_that_some_is_kept(outcome: Outcome) -> None:
    told = describe_ending(outcome, "")
    assert told is not None and told.text.endswith(" No text had come.")


@pytest.mark.parametrize(
    ("model", "usage", "took", "line"),
    [
        ("m", Usage(input_tokens=3, output_tokens=2), 2.0, "m · 3 tokens in, 2 out · 2.0 s"),
        ("m", Usage(input_tokens=3, output_tokens=2, cached_tokens=1), None, "m · 3 (1 cached) tokens in, 2 out"),
        ("m", Usage(), 2.0, "m · 2.0 s"),
        ("", Usage(input_tokens=1), None, "1 tokens in, 0 out"),
        ("", Usage(), None, ""),
    ],
)
def test_the_line_under_an_answer_says_what_is_known(model: str, usage: Usage, took: float | None, line: str) -> None:
    assert describe_usage(model, usage, took) == line


def test_what_was_skipped_is_known_and_not_shown() -> None:
    """T2.a: --after N begins after event N, with the tool's label and the time that the run took."""
    console, output = plain_console()
    terminal = TerminalView(console)
    answer, (notes, said) = io.StringIO(), plain_console()
    piped = PlainView(answer, notes)
    for number, event in enumerate(TOOL_RUN):
        entry = Entry(EventNumber(number), event, 100.0 + number)
        for view in (terminal, piped):
            view.skip(entry) if number < 7 else view.add(entry)
    assert output.getvalue() == "✓ terminal ls (250 ms)\nTwo files.\nm · 3 tokens in, 2 out · 11.0 s\n"
    assert (answer.getvalue(), said.getvalue()) == ("Two files.\n", "✓ terminal ls (250 ms)\n")
    assert terminal.transcript.text == piped.transcript.text == "I look.Two files."


def test_a_note_stands_on_a_line_of_its_own_and_never_in_the_answer() -> None:
    """T1.a: what is not in the log is not in what a program reads."""
    console, output = plain_console()
    terminal = TerminalView(console)
    terminal.add(Entry(EventNumber(0), TextAdded(text="half a"), 0.0))
    terminal.note("lost\x1b[2J")
    terminal.add(Entry(EventNumber(1), TextAdded(text=" line"), 0.0))
    assert output.getvalue() == "half a\nlost␛[2J\n line"
    for kind in (PlainView, JsonView):
        answer, (notes, said) = io.StringIO(), plain_console()
        kind(answer, notes).note("lost\x1b[2J")
        assert (answer.getvalue(), said.getvalue()) == ("", "lost␛[2J\n")


def test_reasoning_and_text_do_not_run_into_each_other() -> None:
    console, output = plain_console()
    view = TerminalView(console)
    pieces: list[Event] = [
        ReasoningAdded(text="Hm"),
        ReasoningAdded(text=" so."),
        TextAdded(text="A"),
        TextAdded(text="b."),
    ]
    show(view, [*pieces, ReasoningAdded(text="Well.\n"), TextAdded(text=""), TextAdded(text="C")])
    assert output.getvalue() == "Hm so.\nAb.\nWell.\nC"


async def test_the_spinner_says_how_long_and_does_not_come_between_words() -> None:
    """T1.a: a spinner while something is awaited, on a terminal that can redraw."""
    output, clock = TerminalFile(), ManualClock()
    view = TerminalView(Console(output, {}, no_color=True, width=60), clock)
    view.add(Entry(EventNumber(0), TurnStarted(turn=0, model="m"), 1.0))
    await clock.advance(0.5)
    view.tick()
    await clock.advance(0.5)
    view.tick()
    assert output.getvalue().split("\r\x1b[2K") == ["⠴ m ", "⠋ m 1.0 s"]
    before = output.getvalue()
    view.add(Entry(EventNumber(1), TextAdded(text="half"), 1.0))
    view.tick()
    assert output.getvalue() == before + "\r\x1b[2Khalf"
    still = TerminalFile()
    dumb = TerminalView(Console(still, {"TERM": "dumb"}, width=60), clock)
    dumb.add(Entry(EventNumber(0), TurnStarted(turn=0, model="m"), 1.0))
    dumb.tick()
    assert still.getvalue() == ""


def test_the_spinner_says_how_much_of_a_call_was_written() -> None:
    """T1.a, U13.a: how much, since nobody is shown half a call."""
    output = TerminalFile()
    view = TerminalView(Console(output, {}, no_color=True, width=60), ManualClock())
    begun = ToolCallBegan(index=0, call_id=CALL, name="write_file")
    show(view, [begun, *(ArgumentsAdded(index=0, bytes=size) for size in (600, 634))])
    view.tick()
    assert output.getvalue() == "⠋ write_file … 1.2 kB "


def test_durations_are_for_people() -> None:
    numbers = (0.0004, 0.01, 0.02, 0.999, 1, 12.34, 59.9, 60, 75, 3599, 3600, 3700)
    assert [seconds(number) for number in numbers] == [
        "0.4 ms",
        "10 ms",
        "20 ms",
        "999 ms",
        "1.0 s",
        "12.3 s",
        "59.9 s",
        "1 min 00 s",
        "1 min 15 s",
        "59 min 59 s",
        "1 h 00 min",
        "1 h 01 min",
    ]


def test_a_long_text_becomes_one_line() -> None:
    assert cut("a\n b", 10) == "a b"
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("x" * 11, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("text", "most", "fitting"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("潮潮潮", 6, "潮潮潮"),
        ("潮潮潮", 5, "潮潮…"),
        ("a潮潮", 4, "a潮…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("abc", 1, "…"),
        ("", 1, ""),
    ],
)
def test_a_line_is_cut_by_the_cells_that_it_takes(text: str, most: int, fitting: str) -> None:
    assert fit_cells(text, most) == fitting


def test_half_a_wide_character_is_none() -> None:
    for most in range(1, 8):
        shown = fit_cells("潮潮潮潮", most)
        assert cells(shown.replace("…", "")) + 1 <= most
        assert set(shown) <= {"潮", " ", "…"}


STYLED = "\x1b[2;3mx\x1b[0m\x1b[31my\x1b[0m\n\n\x1b[31my\x1b[0m\nz"
DIMMED = "\x1b[2;3mx\x1b[0my\n\ny\nz"
PLAIN = "xy\n\ny\nz"


@pytest.mark.parametrize(
    ("file", "environment", "no_color", "written"),
    [
        (TerminalFile, {"TERM": "xterm-256color"}, False, STYLED),
        (TerminalFile, {}, False, STYLED),
        (TerminalFile, {"TERM": "xterm"}, True, PLAIN),
        (TerminalFile, {"TERM": "dumb"}, False, PLAIN),
        (TerminalFile, {"TERM": "UNKNOWN"}, False, PLAIN),
        (TerminalFile, {"NO_COLOR": "1"}, False, DIMMED),
        (TerminalFile, {"NO_COLOR": ""}, False, STYLED),
        (TerminalFile, {"FORCE_COLOR": ""}, False, PLAIN),
        (io.StringIO, {"TERM": "xterm"}, False, PLAIN),
        (io.StringIO, {"FORCE_COLOR": "1"}, False, STYLED),
        (io.StringIO, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, DIMMED),
        (io.StringIO, {"FORCE_COLOR": "1"}, True, PLAIN),
    ],
)
def test_colours_are_for_terminals_and_for_those_who_want_them(
    file: type[io.StringIO], environment: dict[str, str], no_color: bool, written: str
) -> None:
    output = file()
    console = Console(output, environment, no_color=no_color)
    console.write("x", "dim italic")
    console.write_line("y\n\ny", "red")
    console.write("", "red")
    console.write("z")
    assert output.getvalue() == written


@pytest.mark.parametrize("said", ["Too many requests", "Too many requests.", "Too many requests. "])
def test_sentences_are_told_apart_whatever_a_provider_ends_its_own_with(said: str) -> None:
    lines = (
        describe(UpstreamRetried(model="m", attempt=1, error=said, wait_seconds=2), {}),
        describe(FellBack(from_model="m", to_model="n", error=said), {}),
        describe_ending(Failed(reason="upstream_error", message=said), ""),
    )
    assert [line.text for line in lines if line is not None] == [
        "↻ m: Too many requests. Trying again in 2.0 s.",
        "↻ m: Too many requests. n is asked instead.",
        "✗ Failed (upstream_error): Too many requests. No text had come.",
    ]


@pytest.mark.parametrize("text", ["Really?", "No!", "And so on …", 'He said "no."', "(As it was.)"])
def test_a_sentence_that_has_an_end_gets_no_other(text: str) -> None:
    assert sentence(text) == text
