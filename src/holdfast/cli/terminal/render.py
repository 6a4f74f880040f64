"""A run's events on a terminal, through a pipe, or as JSON lines (T1): each a fold of the log that writes as it goes.

`TerminalView` is for people, `PlainView` for `holdfast chat | program`, `JsonView` for programs. Above: chat, runs and
the run follower. Below: wording and console. Asks nobody anything and talks to no server.
"""

import sys
from typing import Any, Final, Protocol, TextIO

import msgspec

from holdfast.cli.options import ClientOptions
from holdfast.cli.terminal.console import Console, fit_cells, make_console
from holdfast.cli.terminal.wording import Line, describe, describe_ending, describe_usage, seconds, size, visible
from holdfast.client import Entry
from holdfast.clock import Clock, SystemClock
from holdfast.events import (
    ApprovalAsked,
    ArgumentsAdded,
    Event,
    ReasoningAdded,
    RunEnded,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallBegan,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from holdfast.outcomes import outcome_message, outcome_name, outcome_reason
from holdfast.runs.log.transcript import Transcript

FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_SECONDS: Final = 0.1


class View(Protocol):
    """Shows one run."""

    transcript: Transcript
    """The run so far."""

    def add(self, entry: Entry) -> None:
        """Show the next event."""
        ...

    def skip(self, entry: Entry) -> None:
        """Know the next event and do not show it."""
        ...

    def note(self, text: str) -> None:
        """Say something that is not in the log."""
        ...

    def tick(self) -> None:
        """Time has passed."""
        ...


class TerminalView:
    """For a person: text as it comes, reasoning dimmed, a line for each tool, a spinner while something is awaited."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self.transcript = Transcript()
        self._console = console
        self._clock = clock or SystemClock()
        self._labels: dict[str, str] = {}
        self._at_line_start = True
        self._in_reasoning = False
        self._began_at: float | None = None
        self._waiting_for = ""
        """What the spinner stands for; empty: there is none."""
        self._waiting_since = 0.0
        self._spinner_shown = False
        self._writing = ""
        """The tool whose call the model writes."""
        self._written_bytes = 0

    def add(self, entry: Entry) -> None:
        """Show the next event."""
        event = entry.event
        if isinstance(event, TurnStarted | RunEnded):
            # A message is shown where the model hears it, and not in the middle of what the model is saying.
            for message in self.transcript.steering:
                self._write_line(describe(Steered(message=message), self._labels))
        self.transcript.add(event, entry.at)
        match event:
            case Steered():
                pass
            case TextAdded():
                self._write_text(event.text)
            case ReasoningAdded():
                self._write_reasoning(event.text)
            case RunStarted():
                self._began_at = entry.at
                self._wait_for("waiting for its turn")
            case TurnStarted():
                self._wait_for(event.model)
            case ToolCallBegan():
                self._begin_line()
                self._writing, self._written_bytes = event.name, 0
                self._wait_for(f"{event.name} …")
            case ArgumentsAdded():
                self._written_bytes += event.bytes
                self._waiting_for = f"{self._writing} … {size(self._written_bytes)}"
            case ToolStarted():
                self._labels[event.call_id] = event.label
                self._begin_line()
                self._wait_for(event.label)
            case ToolFinished() | ApprovalAsked():
                self._wait_for("")
                self._write_line(describe(event, self._labels))
            case RunEnded():
                self._wait_for("")
                self._write_line(describe_ending(event.outcome, self.transcript.text))
                took = entry.at - self._began_at if self._began_at is not None else None
                self._write_line(Line(describe_usage(self.transcript.model, event.usage, took)))
            case _:
                self._write_line(describe(event, self._labels))

    def skip(self, entry: Entry) -> None:
        """Know the next event and do not show it."""
        self.transcript.add(entry.event, entry.at)
        match entry.event:
            case RunStarted():
                self._began_at = entry.at
            case ToolStarted():
                self._labels[entry.event.call_id] = entry.event.label
            case _:
                return

    def note(self, text: str) -> None:
        """Say something that is not in the log."""
        self._write_line(Line(text))

    def tick(self) -> None:
        """Turn the spinner."""
        if not self._waiting_for or not self._at_line_start or not self._console.can_redraw:
            return
        waited = self._clock.monotonic() - self._waiting_since
        frame = FRAMES[int(waited / FRAME_SECONDS) % len(FRAMES)]
        # A line that wrapped could not be erased.
        label = fit_cells(" ".join(visible(self._waiting_for).split()), max(1, self._console.width - 16))
        self._hide_spinner()
        self._console.write(f"{frame} {label} {seconds(waited) if waited >= 1 else ''}", "cyan")
        self._spinner_shown = True

    def _wait_for(self, what: str) -> None:
        self._hide_spinner()
        self._waiting_for = what
        self._waiting_since = self._clock.monotonic()

    def _hide_spinner(self) -> None:
        if self._spinner_shown:
            self._console.erase_line()
            self._spinner_shown = False

    def _write_text(self, text: str) -> None:
        if self._in_reasoning:
            self._begin_line()
        self._wait_for("")
        self._in_reasoning = False
        self._write(visible(text))

    def _write_reasoning(self, text: str) -> None:
        if not self._in_reasoning:
            self._begin_line()
        self._wait_for("")
        self._in_reasoning = True
        shown = visible(text)
        self._console.write(shown, "dim italic")
        self._at_line_start = shown.endswith("\n") or (not shown and self._at_line_start)

    def _write(self, text: str) -> None:
        """The answer itself: as it is, so that a copy of the screen is a copy of the text."""
        if text:
            self._console.write(text)
            self._at_line_start = text.endswith("\n")

    def _begin_line(self) -> None:
        self._hide_spinner()
        self._in_reasoning = False
        if not self._at_line_start:
            self._write("\n")

    def _write_line(self, line: Line | None) -> None:
        if line is None or not line.text:
            return
        self._begin_line()
        self._console.write_line(visible(line.text), line.style)


class PlainView:
    """For a pipe: the answer and nothing else on one stream, everything a person should know on the other."""

    def __init__(self, answer: TextIO, notes: Console) -> None:
        self.transcript = Transcript()
        self._answer = answer
        self._notes = notes
        self._labels: dict[str, str] = {}
        self._last = "\n"

    def add(self, entry: Entry) -> None:
        """Show the next event."""
        event = entry.event
        self.transcript.add(event, entry.at)
        match event:
            case TextAdded():
                self._write(event.text)
            case TurnStarted():
                self._end_line()
            case ToolStarted():
                self._labels[event.call_id] = event.label
            case RunEnded():
                self._end_line()
                self._say(describe_ending(event.outcome, self.transcript.text))
            case _:
                self._say(describe(event, self._labels))

    def skip(self, entry: Entry) -> None:
        """Know the next event and do not show it."""
        self.transcript.add(entry.event, entry.at)
        if isinstance(entry.event, ToolStarted):
            self._labels[entry.event.call_id] = entry.event.label

    def note(self, text: str) -> None:
        """Say something that is not in the log."""
        self._say(Line(text))

    def tick(self) -> None:
        """Nothing moves in a pipe."""

    def _write(self, text: str) -> None:
        if text:
            self._answer.write(text)
            self._answer.flush()
            self._last = text[-1]

    def _end_line(self) -> None:
        if self._last != "\n":
            self._write("\n")

    def _say(self, line: Line | None) -> None:
        if line is not None and line.text:
            self._notes.write_line(visible(line.text), line.style)


class JsonView:
    """For a program: every event as a line of JSON, and at the end a line that sums up."""

    def __init__(self, output: TextIO, notes: Console) -> None:
        self.transcript = Transcript()
        self._output = output
        self._notes = notes

    def add(self, entry: Entry) -> None:
        """Show the next event."""
        self.transcript.add(entry.event, entry.at)
        self._write({"number": entry.number, "at": entry.at, **_as_dict(entry.event)})
        if isinstance(entry.event, RunEnded):
            self._write(summarise(self.transcript))

    def skip(self, entry: Entry) -> None:
        """Know the next event and do not show it."""
        self.transcript.add(entry.event, entry.at)

    def note(self, text: str) -> None:
        """Say something that is not in the log: not to the program."""
        self._notes.write_line(visible(text), "dim")

    def tick(self) -> None:
        """Nothing moves in a pipe."""

    def _write(self, value: dict[str, Any]) -> None:
        self._output.write(msgspec.json.encode(value).decode() + "\n")
        self._output.flush()


def _as_dict(event: Event) -> dict[str, Any]:
    encoded: dict[str, Any] = msgspec.to_builtins(event)
    return encoded


def summarise(transcript: Transcript) -> dict[str, Any]:
    """A run that has ended, in an object."""
    outcome = transcript.outcome
    assert outcome is not None, "only a run that has ended can be summed up"
    usage = transcript.spending.usage
    return {
        "run_id": transcript.run,
        "session_id": transcript.session,
        "outcome": outcome_name(outcome),
        "reason": outcome_reason(outcome),
        "message": outcome_message(outcome),
        "text": transcript.text,
        "usage": {**msgspec.structs.asdict(usage), "total_tokens": usage.total_tokens},
        "model": transcript.model,
    }


def make_view(options: ClientOptions) -> View:
    """The view for whoever reads standard output."""
    notes = make_console(options, stderr=True)
    if options.as_json:
        return JsonView(sys.stdout, notes)
    if sys.stdout.isatty():
        return TerminalView(make_console(options))
    return PlainView(sys.stdout, notes)
