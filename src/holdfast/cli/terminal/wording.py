"""What a terminal says about a run's events, in a line each (T1): pure functions from events to words.

Above: render, lists, prompt and the commands. Below: the vocabulary and the client's values. Writes nothing.
"""

from typing import Final, NamedTuple, assert_never

from holdfast.client import Tokens
from holdfast.events import (
    Answered,
    ApprovalAnswered,
    ApprovalAsked,
    ApprovedBy,
    ArgumentsAdded,
    Event,
    FellBack,
    ReasoningAdded,
    ReasoningSigned,
    RunDelegated,
    RunEnded,
    RunHandedOver,
    RunResumed,
    RunStarted,
    Steered,
    TextAdded,
    ToolCallAnnotated,
    ToolCallBegan,
    ToolCallDropped,
    ToolCallReady,
    ToolFinished,
    ToolStarted,
    TurnCut,
    TurnStarted,
    UpstreamRetried,
    UsageAdded,
    Warned,
)
from holdfast.messages import Usage
from holdfast.outcomes import Completed, Outcome, OutcomeName, outcome_message, outcome_name, outcome_reason

EXIT_CODES: Final[dict[OutcomeName, int]] = {
    "completed": 0,
    "incomplete": 3,
    "cancelled": 3,
    "requires_action": 3,
    "failed": 4,
}
"""What a command that followed a run to its end exits with."""
LEFT_EXIT_CODE: Final = 130
STYLES: Final[dict[str, str]] = {
    "completed": "green",
    "incomplete": "yellow",
    "cancelled": "yellow",
    "requires_action": "yellow",
    "failed": "red",
    "running": "cyan",
    "queued": "cyan",
    "waiting_approval": "magenta",
}
"""The colour of each state of a run."""
_ARGUMENTS_SHOWN: Final = 2_000
_REASON_SHOWN: Final = 200


class Line(NamedTuple):
    """Some words and their colour."""

    text: str
    style: str = "dim"


def describe(event: Event, labels: dict[str, str]) -> Line | None:
    """What a person should read about an event; None: nothing, or it is no line (text, reasoning, the end).

    Args:
        event: what happened.
        labels: the label of each tool that began, by its call.
    """
    match event:
        case ToolFinished():
            return _describe_tool(event, labels.get(event.call_id))
        case ToolCallDropped():
            how = "was not carried out" if event.executed == "no" else "may or may not have been carried out"
            return Line(f"✗ {event.name} {how}: its call broke off after {event.bytes_received} bytes", "red")
        case ToolCallReady():
            shown = cut(event.arguments, _ARGUMENTS_SHOWN)
            return Line(f"→ {event.name} {shown}: for the client to carry out", "yellow")
        case UpstreamRetried():
            return Line(f"↻ {event.model}: {sentence(event.error)} Trying again in {seconds(event.wait_seconds)}.")
        case FellBack():
            return Line(f"↻ {event.from_model}: {sentence(event.error)} {event.to_model} is asked instead.", "yellow")
        case ApprovalAsked():
            shown = cut(event.arguments, _ARGUMENTS_SHOWN)
            return Line(f"? {event.name} {shown} needs approval, within {seconds(event.seconds)}", "magenta")
        case ApprovalAnswered():
            what = "approved" if event.approved else "denied"
            return Line(f"  {what}{_ANSWERED[event.by]}")
        case Steered():
            return Line(f"› {event.message.text}")
        case Warned():
            return Line(f"! {event.message}", "yellow")
        case RunDelegated():
            return Line(f"  {event.agent} is asked: run {event.run}")
        case RunResumed():
            return Line(f"↻ The server was {_RESUMED[event.reason]}; the run goes on.")
        case (
            TextAdded()
            | ReasoningAdded()
            | RunHandedOver()
            | ReasoningSigned()
            | ToolCallBegan()
            | ArgumentsAdded()
            | ToolCallAnnotated()
            | Answered()
            | RunStarted()
            | TurnStarted()
            | TurnCut()
            | ToolStarted()
            | UsageAdded()
            | RunEnded()
        ):
            return None
        case _:
            assert_never(event)


_RESUMED = {"server_restart": "gone", "handed_over": "stopped"}


def _describe_tool(event: ToolFinished, label: str | None) -> Line:
    name = label or event.name
    match event.executed:
        case "no":
            return Line(f"✗ {name}: {cut(event.output, _REASON_SHOWN)}", "red")
        case "unknown":
            return Line(f"? {name}: stopped while it ran; it is not known whether it was carried out", "yellow")
        case "yes":
            took = seconds(event.seconds)
            if event.failed:
                return Line(f"✗ {name} ({took}): {cut(event.output, _REASON_SHOWN)}", "red")
            return Line(f"✓ {name} ({took})", "green")
        case _:
            assert_never(event.executed)


def describe_ending(outcome: Outcome, text: str) -> Line | None:
    """How a run ended, and what was kept; None when all went well, which needs no words."""
    if isinstance(outcome, Completed):
        return None
    word, style = _ENDINGS[outcome_name(outcome)]
    kept = f"The {len(text)} characters that came are kept." if text else "No text had come."
    return Line(f"{word} ({outcome_reason(outcome)}): {sentence(outcome_message(outcome))} {kept}", style)


def describe_mark(outcome: str | None, reason: str | None, text: str) -> Line | None:
    """R2: what is said under an earlier answer that is not whole; None: it is."""
    if outcome not in ("incomplete", "cancelled", "failed"):
        return None
    word, style = _ENDINGS[outcome]
    what = "this answer is not whole." if text else "no answer came."
    return Line(f"{word}{f' ({reason})' if reason else ''}: {what}", style)


_ENDINGS: Final[dict[str, tuple[str, str]]] = {
    "incomplete": ("▲ Incomplete", "yellow"),
    "cancelled": ("■ Stopped", "yellow"),
    "requires_action": ("… Waiting", "yellow"),
    "failed": ("✗ Failed", "red"),
}
_ANSWERED: Final[dict[ApprovedBy, str]] = {
    "client": "",
    "nobody": ": there is nobody to ask",
    "timeout": ": nobody answered in time",
    "stop": "",
}


def describe_usage(model: str, usage: Usage | Tokens, took_seconds: float | None) -> str:
    """The line under an answer."""
    parts = [model] if model else []
    if usage.total_tokens:
        cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
        parts.append(f"{usage.input_tokens}{cached} tokens in, {usage.output_tokens} out")
    if took_seconds is not None:
        parts.append(seconds(took_seconds))
    return " · ".join(parts)


def seconds(number: float) -> str:
    """A duration for people."""
    if number < 0.01:
        return f"{number * 1000:.1f} ms"
    if number < 1:
        return f"{number * 1000:.0f} ms"
    if number < 60:
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def size(number: int) -> str:
    """A number of bytes for people."""
    return f"{number} bytes" if number < 1000 else f"{number / 1000:.1f} kB"


def sentence(text: str) -> str:
    """A text that another sentence may follow. What providers say often ends without a stop."""
    ended = text.rstrip()
    return ended if ended.rstrip("\"'”)").endswith((".", "!", "?", "…")) else f"{ended}."


def cut(text: str, characters: int) -> str:
    """A text in one line, and not too long a one."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def visible(text: str) -> str:
    """A text that cannot steer a terminal: control characters become pictures of themselves.

    What a model or a tool says may hold escape sequences; they must not move the cursor, set the title or type keys.
    """
    return text.translate(_PICTURES)


_PICTURES: Final = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t\r"},
    ord("\r"): None,
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}
