"""What a run's turns have cost, as its log has it: a part of the transcript. No I/O; sits on the vocabulary."""

from holdfast.events import Answered, Event, RunEnded, RunResumed, TurnStarted, UsageAdded
from holdfast.messages import Usage


class Spending:
    """The tokens of a run."""

    __slots__ = ("_is_asked_again", "_model", "asked_again", "by_model", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self.by_model: dict[str, Usage] = {}
        """S13: by the model that has used it."""
        self.asked_again = 0
        """Input tokens of turns that were asked once more because a server was gone."""
        self._is_asked_again = False
        self._model = ""
        """Whose turn it is."""

    def copy(self) -> "Spending":
        """One that goes on by itself."""
        other = Spending()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.by_model = self.by_model.copy()
        return other

    def add(self, event: Event) -> None:
        """Take what an event says of tokens."""
        match event:
            case TurnStarted():
                self._model = event.model
            case Answered():
                self._use(event.model, event.usage)
                if self._is_asked_again:
                    self.asked_again += event.usage.input_tokens
                    self._is_asked_again = False
            case UsageAdded():
                self._use(self._model, event.usage)
            case RunResumed():
                self._is_asked_again = event.cut in ("request", "reasoning", "text", "tool_call")
            case RunEnded():
                self.usage = event.usage
            case _:
                pass

    def _use(self, model: str, usage: Usage) -> None:
        self.usage += usage
        self.by_model[model] = self.by_model.get(model, Usage()) + usage
