"""How many tokens a call has, where nobody has counted them (M1). No tokenizer: they differ by model. No I/O.

Sits on the port to models.
"""

from typing import Final

import msgspec

from holdfast.messages import AssistantMessage, Image, Message, SystemMessage, Text, ToolMessage, UserMessage
from holdfast.upstream.port import ModelCall

BYTES_PER_TOKEN: Final = 4
"""Of text in UTF-8: about right for English and code, too few tokens for little else."""
MESSAGE_TOKENS: Final = 4
"""What surrounds each message, call and tool."""
IMAGE_TOKENS: Final = 1_600
"""The most that Anthropic counts for one of ordinary size; its bytes say nothing."""


def estimate_tokens(call: ModelCall) -> int:
    """About how many tokens a model would be sent: a token for every four bytes, and some for what surrounds them."""
    tools = sum(
        _tokens(f"{tool.name} {tool.description}") + _tokens(msgspec.json.encode(tool.parameters).decode())
        for tool in call.tools
    )
    return _tokens(call.system) + tools + sum(_estimate(message) for message in call.messages)


def _estimate(message: Message) -> int:
    match message:
        case SystemMessage():
            return _tokens(message.text)
        case UserMessage():
            return MESSAGE_TOKENS + sum(
                IMAGE_TOKENS if isinstance(part, Image) else _tokens(part.text) for part in message.parts
            )
        case ToolMessage():
            return _tokens(message.output)
        case AssistantMessage():
            words = (part.text if isinstance(part, Text) else "" for part in message.parts)
            calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
            return sum(map(_tokens, words)) + sum(map(_tokens, calls))


def _tokens(text: str) -> int:
    """Thinking of earlier turns is left out: providers do not read it again."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return MESSAGE_TOKENS + (size + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN if text else 0
