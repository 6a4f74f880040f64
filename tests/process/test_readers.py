"""R7: many readers of one run, one of them deaf, on a real process: the run does not notice."""

import asyncio
import time
from pathlib import Path

from holdfast.testing import Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.serving import CHAT, Client, asking, running_server

WORDS = tuple(f"w{number} " for number in range(200))
READERS = 40


async def test_a_deaf_reader_slows_neither_the_run_nor_the_others(tmp_path: Path) -> None:
    """R7.a: all see the same to the end; the run takes as long as it takes alone."""
    async with ScriptedProvider(lambda _: Reply(text=WORDS, delay_seconds=0.005)) as provider:
        with running_server(tmp_path, CONFIG.format(url=provider.url)) as server:
            async with Client(server.base_url) as http:
                began = time.monotonic()
                assert (await http.post(CHAT, asking(stream=True))).text == "".join(WORDS)
                alone = time.monotonic() - began
                run = (await http.post("/v1/runs", {"input": "go"})).json["run_id"]
                began = time.monotonic()
                host, _, port = server.base_url.removeprefix("http://").partition(":")
                _, deaf = await asyncio.open_connection(host, int(port), limit=16)
                deaf.write(f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                answers = await asyncio.gather(*(http.get(f"/v1/runs/{run}/events") for _ in range(READERS)))
                together = time.monotonic() - began
                deaf.close()
                assert len({answer.body for answer in answers}) == 1
                assert answers[0].body.count(b"event: text.added") == len(WORDS)
                assert answers[0].body.count(b"event: run.ended") == 1
    assert together < alone * 3 + 1, (alone, together)
