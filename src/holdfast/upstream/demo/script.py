"""What the built-in demo model says: a prompt goes in, a turn comes out.

It understands a few plain requests, enough to show streaming, reasoning, tools and long answers without a key. Pure:
no waiting and no I/O; `upstream` sits above and speaks it, `requests` below reads the prompt.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.messages import (
    GO_ON,
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from holdfast.upstream.demo.requests import (
    MAX_REQUEST_CHARACTERS,
    DemoCall,
    fill_arguments,
    find_named,
    find_requests,
    make_example,
)
from holdfast.upstream.port import ModelCall, NamedTool


class DemoTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What it thinks, says and calls in one turn."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[DemoCall, ...] = ()
    pace: float = 1.0
    """How many times slower than usual it speaks."""


INTRODUCTION: Final = """\
I am Holdfast's built-in **demo model**. I run offline, without a key, and I only understand a few requests; \
everything around me (streaming, tools, sessions, stopping, replay) is the real thing.

Try one of these:

- `list the files here`
- `read README.md`
- `run ls -la`
- `write hello to notes.txt`
- `remember that the meeting is on Friday`, then `recall meeting`
- `count to 200`, `count slowly to 50`, `write 500 words`, `show me markdown`

To talk to a real model, set `OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, `OPENROUTER_API_KEY` or `GEMINI_API_KEY`, or start \
Ollama, and restart the server; or name one in `holdfast.toml`:

```toml
model = "openai/gpt-5.2"
```
"""

_MARKDOWN: Final = """\
## Markdown, as a model writes it

Some **bold** words, some *slanted* ones, `inline code` and a [link](https://example.org).

| outcome | success? | what is kept |
|---|:-:|---|
| completed | yes | the whole answer |
| incomplete | no | the text so far |
| failed | no | the text so far, and the reason |

1. First a numbered list,
2. then a piece of code:

```python
def fibonacci(n: int) -> list[int]:
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]
```

> And a quotation, to end with.
"""

_STORY: Final = (
    "The tide came in before the lamp was lit.",
    "Nobody on the pier had expected the boat to hold, and yet it held.",
    "A rope, wet and heavy, ran through the ring and back into the dark.",
    "Someone counted the barrels twice and wrote the number down.",
    "The wind turned at midnight, as the old man had said it would.",
    "By morning the water was flat, and every knot was where they had left it.",
)

_SETS: Final = {
    "terminal": "terminal",
    "fetch_url": "web",
    "remember": "memory",
    "recall": "memory",
}


def make_turn(call: ModelCall) -> DemoTurn:
    """What the demo model does with a call."""
    match call.messages:
        case [*before, AssistantMessage() as cut, UserMessage() as note] if note.text == GO_ON:
            turn = _make_turn(msgspec.structs.replace(call, messages=tuple(before)))
            return msgspec.structs.replace(turn, reasoning="", text=turn.text.removeprefix(cut.text))
        case _:
            return _make_turn(call)


def _make_turn(call: ModelCall) -> DemoTurn:
    last = call.messages[-1] if call.messages else None
    results: list[ToolMessage] = []
    for message in reversed(call.messages):
        if not isinstance(message, ToolMessage):
            break
        results.insert(0, message)
    if results:
        return _tell_results(results)
    prompt = last.without_reminders.text if isinstance(last, UserMessage) else ""
    tools = {} if call.options.tool_choice == "none" else {tool.name: tool for tool in call.tools}
    wanted = find_requests(prompt) or find_named(prompt, tools.values())
    forced = call.options.tool_choice
    if isinstance(forced, NamedTool) and forced.name in tools:
        wanted = [each for each in wanted if each.name == forced.name] or [fill_arguments(tools[forced.name], prompt)]
    elif forced == "required" and tools and not any(each.name in tools for each in wanted):
        wanted = [fill_arguments(next(iter(tools.values())), prompt)]
    if wanted:
        return _call_tools(wanted, tools)
    if call.options.response_format is not None and call.options.response_format.kind != "text":
        schema = call.options.response_format.schema
        answer = make_example(schema) if schema else {"answer": "This is the demo model.", "prompt": prompt}
        return DemoTurn(reasoning="An answer in JSON is asked for.", text=msgspec.json.encode(answer).decode())
    return _speak(prompt[:MAX_REQUEST_CHARACTERS], last)


def _call_tools(wanted: Sequence[DemoCall], tools: dict[str, ToolSpec]) -> DemoTurn:
    calls = tuple(each for each in wanted if each.name in tools)
    missing = [each.name for each in wanted if each.name not in tools]
    lacking = "".join(
        f"I would use `{name}` for that, but it is not switched on here: "
        f'add `"{_SETS.get(name, "files")}"` to `tools` under `[agent]` in `holdfast.toml`. '
        for name in dict.fromkeys(missing)
    )
    if not calls:
        return DemoTurn(
            reasoning=f"I am asked for something that needs {missing[0]}, and I do not have it.", text=lacking
        )
    names = " and ".join(dict.fromkeys(each.name for each in calls))
    plan = f"I am asked for something that {names} can do, so I call it with what the message says."
    return DemoTurn(reasoning=plan, text=lacking, calls=calls)


def _tell_results(results: Sequence[ToolMessage]) -> DemoTurn:
    parts = []
    for result in results:
        name = f"`{result.name}`" if result.name else "The tool"
        lines = result.output.strip("\n").splitlines()
        shown = "\n".join(line[:300] for line in lines[:40])
        fence = "````" if "```" in shown else "```"
        more = f"\n\n… and {len(lines) - 40} more lines." if len(lines) > 40 else ""
        if result.failed:
            parts.append(f"{name} could not do it:\n\n{fence}\n{shown}\n{fence}{more}")
        elif not shown.strip():
            parts.append(f"{name} is done and said nothing.")
        else:
            parts.append(f"{name} says:\n\n{fence}\n{shown}\n{fence}{more}")
    failed = any(result.failed for result in results)
    thought = "A tool has failed; I say so plainly." if failed else "The tool has answered; I pass on what it said."
    return DemoTurn(reasoning=thought, text="\n\n".join(parts) + "\n")


def _speak(prompt: str, last: Message | None) -> DemoTurn:
    pace = 12.0 if re.search(r"\bslow(?:ly)?\b", prompt, re.IGNORECASE) else 1.0
    if match := re.search(r"\bcount\b.*?\bto\s+(\d{1,6})\b", prompt, re.IGNORECASE | re.DOTALL):
        end = min(int(match[1]), 20_000)
        return DemoTurn(
            reasoning=f"I count to {end}.", text=" ".join(str(n) for n in range(1, end + 1)) + "\n", pace=pace
        )
    if match := re.search(r"\b(\d{1,6})\s+words\b", prompt, re.IGNORECASE):
        return DemoTurn(reasoning=f"They want {match[1]} words.", text=_words(min(int(match[1]), 20_000)), pace=pace)
    if re.search(r"\b(?:markdown|code|table)\b", prompt, re.IGNORECASE):
        return DemoTurn(reasoning="A bit of everything that a page must be able to show.", text=_MARKDOWN, pace=pace)
    seen = isinstance(last, UserMessage) and any(isinstance(part, Image) for part in last.parts)
    aside = "I cannot see pictures. " if seen else ""
    return DemoTurn(
        reasoning="This is nothing I know how to do offline, so I say what I am and what I can do.",
        text=aside + INTRODUCTION,
        pace=pace,
    )


def _words(count: int) -> str:
    words: list[str] = []
    number = 0
    while len(words) < count:
        sentence = _STORY[number % len(_STORY)].split()
        number += 1
        if number % len(_STORY) == 0:
            sentence[-1] += "\n\n"
        words += sentence
    return " ".join(words[:count]).replace("\n\n ", "\n\n").rstrip(" .\n") + ".\n"


def count_input_tokens(call: ModelCall) -> int:
    """About as many tokens as a tokenizer would count: one for each word of everything that was sent."""
    words = len(call.system.split())
    for message in call.messages:
        match message:
            case ToolMessage():
                words += len(message.output.split())
            case SystemMessage():
                words += len(message.text.split())
            case _:
                words += len(message.text.split()) + 3
    return words + 20 * len(call.tools)
