"""What servers want of each other's runs, as rows (R17): a part of the port of coordination.

A command waits for its answer whoever has its run by then. Sits on the pool. Its twin is in memory/shared.py.
"""

from typing import Final

import msgspec

from holdfast.ids import RunId
from holdfast.store.coordination import Command, CommandAnswer, CommandId, Decide, Steer, Stop
from holdfast.store.postgres.connections.pool import ConnectionPool
from holdfast.store.postgres.connections.texts import from_text, to_text
from holdfast.store.postgres.saving.writer import PostgresWriter

_WAITING: Final = """
    SELECT commands.id, commands.run, commands.wish
    FROM holdfast.commands JOIN holdfast.runs ON runs.id = commands.run
    WHERE commands.answer IS NULL AND runs.owner = $1 AND runs.outcome IS NULL ORDER BY commands.number
    """
_encode = msgspec.json.Encoder().encode
_decode_wish = msgspec.json.Decoder(Stop | Steer | Decide).decode
_decode_answer = msgspec.json.Decoder(CommandAnswer).decode


class PostgresCommands:
    """The commands."""

    _writer: PostgresWriter
    _pool: ConnectionPool

    async def send(self, command: Command) -> None:
        """Save a command, and tell whoever has its run."""
        query = "SELECT holdfast.send_command($1, $2, $3, $4)"
        values = (self._writer.me, to_text(command.id), to_text(command.run), _encode(command.wish))
        await self._pool.change(lambda connection: connection.fetchval(query, *values))

    async def commands(self) -> list[Command]:
        """What was asked of this server's runs and has no answer yet."""
        rows = await self._pool.read(lambda connection: connection.fetch(_WAITING, self._writer.me))
        return [
            Command(id=CommandId(from_text(number)), run=RunId(from_text(run)), wish=_decode_wish(wish))
            for number, run, wish in rows
        ]

    async def answer(self, command: CommandId, answer: CommandAnswer) -> None:
        """Answer a command; the first answer counts."""
        query = "SELECT holdfast.answer_command($1, $2)"
        await self._pool.change(lambda connection: connection.fetchval(query, to_text(command), _encode(answer)))

    async def find_answer(self, command: CommandId) -> CommandAnswer | None:
        """What came of a command."""
        query = "SELECT answer FROM holdfast.commands WHERE id = $1"
        answer = await self._pool.read(lambda connection: connection.fetchval(query, to_text(command)))
        return None if answer is None else _decode_answer(answer)
