"""An agent, and how it behaves when its model fails: in milliseconds, without a network."""

import holdfast
from holdfast.errors import TransportLostError
from holdfast.events import TextAdded
from holdfast.testing import Turn, open_for_test, says

agent = holdfast.Agent(name="helper", prompt="You are brief.", tools=[])


async def test_it_answers() -> None:
    async with open_for_test([agent], turns=[says("Hello there.")]) as server:
        answer = await server.ask("Hi")
        assert (answer.text, answer.completed) == ("Hello there.", True)
        assert server.model.calls[0].system == "You are brief."


async def test_a_lost_connection_is_never_success() -> None:
    cut: Turn = [[TextAdded(text="Hello th")], TransportLostError()]
    async with open_for_test([agent], turns=[cut, TransportLostError()]) as server:
        answer = await server.ask("Hi")
        assert (answer.text, answer.outcome, answer.reason) == ("Hello th", "incomplete", "stream_interrupted")
        answer = await server.ask("Hi")
        assert (answer.outcome, answer.reason) == ("failed", "upstream_disconnected")
