"""A team on one server: an admin, two users and a viewer, over a model that says what it was shown.

The model's answer repeats everything that it was asked with, so that whatever of one key reaches another's run stands
in that one's answer. `remember …` and `recall …` make it call a tool; `hold` makes it pause.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.chaos.recorded import RecordedRequest
from holdfast.chaos.reply import tool_call
from holdfast.config import AgentSettings
from holdfast.runs.team.keyring import LOOK_SECONDS
from holdfast.testing import Reply
from tests.serving import Client, World, serving

ADMIN_KEY = "the-key-of-the-admin"


def say_what_was_shown(request: RecordedRequest) -> Reply:
    """A model without a secret."""
    word, _, rest = request.prompt.partition(" ")
    match word:
        case "remember":
            return Reply(calls=(tool_call("remember", text=rest),))
        case "recall":
            return Reply(calls=(tool_call("recall", query=""),))
        case "hold":
            return Reply(text=("Hold", "ing on."), hold_after=1)
        case _:
            return Reply(text=(f"I was shown: {request.raw.decode()}",))


@dataclass
class Team:
    """The server, and a client for every key."""

    world: World
    admin: Client
    alice: Client
    bob: Client
    viewer: Client
    stack: AsyncExitStack

    async def client(self, key: str | None) -> Client:
        """One more."""
        return await self.stack.enter_async_context(Client(self.world.base_url, key))

    async def revoke(self, name: str) -> None:
        """Have a key revoked, and seen so by every server."""
        answer = await self.admin.send("DELETE", f"/v1/keys/{name}")
        assert answer.json == {"name": name, "object": "key.deleted", "deleted": True}
        async with asyncio.timeout(LOOK_SECONDS + 1):
            while any(key.name == name for server in self.world.servers for key in server.service.keyring.keys):
                await asyncio.sleep(0.01)

    async def make_key(self, name: str, **fields: Any) -> Client:
        """A new key's client."""
        made = await self.admin.post("/v1/keys", {"name": name, **fields})
        assert made.status == 201, made.body
        return await self.client(made.json["key"])


@asynccontextmanager
async def a_team(**options: Any) -> AsyncIterator[Team]:
    """Everybody on one server, or on several that share a store."""
    options.setdefault("agent", AgentSettings(prompt="", tools=("memory",), approval={"remember": "ask", "*": "auto"}))
    async with (
        serving(options.pop("script", say_what_was_shown), key=ADMIN_KEY, **options) as world,
        AsyncExitStack() as stack,
    ):
        nobody = Client(world.base_url)
        await stack.enter_async_context(nobody)
        team = Team(world, world.client, nobody, nobody, nobody, stack)
        team.alice, team.bob = await team.make_key("alice"), await team.make_key("bob")
        team.viewer = await team.make_key("watcher", role="viewer")
        yield team
