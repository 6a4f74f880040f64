"""What a client that keeps the conversation itself has sent, cut where the new part begins (C10, M1).

Chat completions and messages read their own words into this, and go on alike from here. Sits on the vocabulary.
"""

from collections.abc import Sequence

import msgspec

from holdfast.messages import AssistantMessage, Message, ToolMessage, UserMessage


class SentConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it was sent."""

    system: str
    """All instructions, joined."""
    history: tuple[Message, ...]
    input: tuple[Message, ...]
    """From the last user message on, with the tool results before it; or the tool results at the end."""

    @property
    def first_user_text(self) -> str:
        """What began the conversation (C13)."""
        messages = (*self.history, *self.input)
        return next((message.text for message in messages if isinstance(message, UserMessage)), "")


def cut_conversation(system: str, said: Sequence[Message]) -> SentConversation:
    """Cut what was said where the new part begins. Not all of it may be the answerer's."""
    begin = len(said) - 1
    while is_answer(said[begin]):
        # The beginning of an answer that the model should go on with belongs to what is new.
        begin -= 1
    while begin and isinstance(said[begin - 1], ToolMessage) and not is_answer(said[begin - 1]):
        # Results that nobody has answered yet are new too, whatever the user said after them.
        begin -= 1
    return SentConversation(system=system, history=tuple(said[:begin]), input=tuple(said[begin:]))


def is_answer(message: Message) -> bool:
    """Is it what the model said, or what the server's own tools did for it?"""
    return isinstance(message, AssistantMessage) or (isinstance(message, ToolMessage) and message.by_server)
