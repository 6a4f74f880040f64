"""What is asked of the demo model: plain sentences become tool calls.

A handful of patterns, and any tool that a prompt calls by its name. Pure; `script` sits above.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.messages import ToolSpec


class DemoCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool the demo model wants carried out."""

    name: str
    arguments: dict[str, Any]


MAX_REQUEST_CHARACTERS: Final = 1_000
"""Nobody asks for a file in more; patterns over megabytes would hold up everybody else."""
_POLITE: Final = r"^\s*(?:(?:please|now|then|also|can you|could you|would you|i want you to)[,\s]+)*"
_WORDS: Final = {
    "<PATH>": r"[`'\"]?(?P<path>[^\s`'\",;?]*[^\s`'\",;?.!])[`'\"]?",
    "<IN>": r"\s+(?:in|of|under)\s+(?!this|the current|here)",
    "<FILE>": r"(?:the\s+|a\s+)?(?:file\s+)?",
    "<Q>": r"[`'\"]?",
    "<END>": r"\s*[.?!]?\s*$",
}
_SENTENCES: Final = (
    ("fetch_url", r"(?:fetch|get|open|load|download|visit)\s+(?:the page\s+)?(?P<url>https?://[^\s`'\"<>]+)"),
    ("list_files", r"(?:list|show)\s+(?:me\s+)?(?:all\s+)?(?:the\s+)?files(?:<IN><PATH>)?"),
    ("list_files", r"(?:what|which)\s+files\b(?:.*?<IN><PATH>)?"),
    (
        "search_files",
        r"(?:search|grep|look)\s+(?:(?:in\s+)?(?:the\s+|all\s+)?files?\s+)?for\s+<Q>(?P<pattern>.+?)<Q><END>",
    ),
    ("edit_file", r"replace\s+<Q>(?P<old_text>.+?)<Q>\s+(?:with|by)\s+<Q>(?P<new_text>.+?)<Q>\s+in\s+<FILE><PATH>"),
    ("write_file", r"(?:write|save|put)\s+<Q>(?P<content>.+?)<Q>\s+(?:in)?to\s+<FILE><PATH><END>"),
    ("write_file", r"create\s+<FILE><PATH>\s+(?:with|containing)\s+<Q>(?P<content>.+?)<Q>\s*$"),
    ("read_file", r"(?:read|cat|open|print|show)\s+(?:me\s+)?<FILE>(?=\S*[./])<PATH>"),
    ("read_file", r"read\s+(?:me\s+)?<FILE><PATH>"),
    ("terminal", r"(?:run|execute)\s+(?:the\s+)?(?:command\s+)?`(?P<command>[^`]+)`"),
    ("terminal", r"(?:run|execute)\s+(?:the\s+)?(?:command\s+)?(?P<command>.+?)\s*$"),
    ("remember", r"remember\s*(?:that\b|this\b|:)?[:,]?\s*(?P<text>\S.*?)\s*$"),
    ("recall", r"(?:recall|what do you (?:remember|know) (?:about|of))\s+(?P<query>.+?)<END>"),
)
"""A tool, and the sentence that asks for it; the groups are its arguments. The first that fits is taken."""


def _compile(sentence: str) -> re.Pattern[str]:
    for word, meaning in _WORDS.items():
        sentence = sentence.replace(word, meaning)
    return re.compile(_POLITE + sentence, re.IGNORECASE | re.DOTALL)


_REQUESTS: Final = tuple((tool, _compile(sentence)) for tool, sentence in _SENTENCES)
_GREEDY: Final = frozenset({"terminal", "remember", "write_file"})
"""Requests whose words may hold an "and", a "then" and a semicolon of their own."""


def find_requests(prompt: str) -> list[DemoCall]:
    """The calls that a prompt asks for in plain words, one or several."""
    if len(prompt) > MAX_REQUEST_CHARACTERS:
        return []
    whole = _find_request(prompt)
    if whole is not None and whole.name in _GREEDY:
        return [whole]
    found: list[DemoCall] = []
    for clause in re.split(r"\n+|,?\s+and then\s+|,\s*then\s+|;\s+", prompt.strip()):
        parts = [_find_request(part) for part in clause.split(" and ")]
        if not all(parts):
            parts = [_find_request(clause)]
        found += (part for part in parts if part is not None)
    return found[:8]


def _find_request(clause: str) -> DemoCall | None:
    for tool, pattern in _REQUESTS:
        if match := pattern.match(clause):
            return DemoCall(name=tool, arguments={name: text for name, text in match.groupdict().items() if text})
    return None


def find_named(prompt: str, tools: Iterable[ToolSpec]) -> list[DemoCall]:
    """A tool that the prompt calls by its name, whole or without the `mcp__server__` before it."""
    opening = prompt[:MAX_REQUEST_CHARACTERS]
    for tool in tools:
        short = re.escape(tool.name.rpartition("__")[2])
        match = re.search(rf"(?<![\w-]){re.escape(tool.name)}(?![\w-])", opening) or re.search(
            rf"\b(?:use|call|run|try)\s+(?:the\s+)?[`'\"]?{short}\b", opening, re.IGNORECASE
        )
        if match:
            return [fill_arguments(tool, prompt[match.end() :])]
    return []


def fill_arguments(tool: ToolSpec, words: str) -> DemoCall:
    """Arguments from the JSON in the words, else from what is quoted, else from what is there."""
    start, end = words.find("{"), words.rfind("}")
    if 0 <= start < end:
        try:
            given = msgspec.json.decode(words[start : end + 1], type=dict[str, Any])
        except msgspec.DecodeError:
            given = None
        if given is not None:
            return DemoCall(name=tool.name, arguments=given)
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    rest = re.sub(r"^[`'\"\s]*(?:tool)?\s*(?:with|for|in|on|to|:)?\s*", "", words).strip(" \n.!?`'\"")
    texts = [next(filter(None, groups)) for groups in re.findall(r"\"([^\"]+)\"|`([^`]+)`|'([^']+)'", words)] or [rest]
    numbers = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", words)
    arguments: dict[str, Any] = {}
    for name in required if isinstance(required, list) else []:
        schema = properties.get(name, {})
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind in ("integer", "number") and numbers:
            number = float(numbers.pop(0))
            arguments[name] = int(number) if kind == "integer" else number
        elif kind in ("string", None) and "enum" not in schema:
            arguments[name] = texts.pop(0) if len(texts) > 1 else texts[0]
        else:
            arguments[name] = make_example(schema, tool.parameters)
    return DemoCall(name=tool.name, arguments=arguments)


def make_example(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A small value that fits a JSON Schema, as far as one can be made by looking."""
    if not isinstance(schema, dict) or depth > 12:
        return None
    root = schema if root is None else root
    if isinstance(reference := schema.get("$ref"), str):
        target: Any = root
        for key in reference.removeprefix("#/").split("/"):
            target = target.get(key) if isinstance(target, dict) else None
        return make_example(target, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(choice), list) and schema[choice]:
            return make_example(schema[choice][0], root, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            properties = schema.get("properties", {})
            return {name: make_example(each, root, depth + 1) for name, each in properties.items()}
        case "array":
            return [make_example(schema["items"], root, depth + 1)] if "items" in schema else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "demo"
