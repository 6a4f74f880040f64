"""What Claude models of each generation take, read from their names.

The protocol has changed with the models: how thinking is asked for, whether sampling options are taken, how long an
answer may be. A name that is not Claude's is a server that imitates the protocol, and gets its oldest form. `encode`
sits above; no I/O.
"""

import re
from typing import Final

import msgspec

_VERSION: Final = re.compile(r"(?:^|-)(\d{1,2})(?:[-.](\d{1,2}))?(?=$|[-@:.])")
_NEWEST: Final = (99, 0)
"""For a Claude whose name has no version: most likely newer than this table."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes."""

    adaptive_thinking: bool
    """Effort and adaptive thinking; otherwise thinking has a budget of tokens."""
    sampling: bool
    """`temperature` and `top_p` are taken."""
    json_schema: bool
    """`output_config.format` and strict tools are taken."""
    shows_thinking: bool
    """Thinking comes in words without being asked to."""
    thinks_unasked: bool
    """A request that says nothing of thinking has it, and not every such model lets it be turned off."""
    knows_xhigh: bool
    max_output_tokens: int
    """How long an answer may be when nobody has said: within every model's own limit."""


def generation_of(model: str) -> Generation:
    """By the name, clouds' prefixes too: `us.anthropic.claude-opus-4-6`, `claude-3-7-sonnet-20250219`."""
    version = _version_of(model)
    return Generation(
        adaptive_thinking=version >= (4, 6),
        sampling=version < (4, 7),
        json_schema=version >= (4, 5),
        shows_thinking=version < (4, 7),
        thinks_unasked=version >= (5, 0),
        knows_xhigh=version >= (4, 7),
        max_output_tokens=32_000 if version >= (4, 0) else 8_192 if version == (0, 0) or version > (3, 0) else 4_096,
    )


def _version_of(model: str) -> tuple[int, int]:
    name = model.lower()
    if "claude" not in name:
        return (0, 0)
    found = _VERSION.search(name[name.index("claude") :])
    return (int(found[1]), int(found[2] or 0)) if found else _NEWEST
