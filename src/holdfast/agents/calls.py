"""What a model is asked: the agent's own prompt and tools, and what a request adds to them (C10, C11).

Above: the loop, which asks, and whoever wants to know beforehand. Sits on the ports; does no I/O.
"""

from collections.abc import Sequence

from holdfast.agents.cut_notes import note_cuts
from holdfast.agents.pairing import pair_results
from holdfast.agents.request import RunRequest, with_defaults
from holdfast.config import AgentSettings
from holdfast.messages import Message, ToolSpec
from holdfast.tools.port import Tools
from holdfast.upstream.port import ModelCall, Options


def make_call(
    settings: AgentSettings, tools: Tools, request: RunRequest, messages: Sequence[Message], options: Options
) -> ModelCall:
    """One turn's question."""
    shown: list[ToolSpec] = list(request.client_tools)
    if request.server_tools:
        theirs = {tool.name for tool in request.client_tools}
        shown += [spec for spec in tools.specs() if spec.name not in theirs]
    return ModelCall(
        model=request.model,
        system="\n\n".join(filter(None, (settings.prompt, request.instructions))),
        messages=tuple(messages),
        tools=tuple(shown),
        options=options,
    )


def preview_call(settings: AgentSettings, tools: Tools, request: RunRequest) -> ModelCall:
    """What a model would be asked first, were this request run now (M1)."""
    messages = note_cuts(pair_results(request.history, request.input))
    return make_call(settings, tools, request, messages, with_defaults(request.options, settings))
