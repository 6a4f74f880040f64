"""R9: SIGTERM on a real process: running work gets its grace, then it is interrupted, told and saved."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing import Fault, Reply, ScriptedProvider
from tests.crashing import CONFIG
from tests.serving import CHAT, Answer, Client, asking, running_server


async def test_sigterm_lets_one_answer_finish_and_cuts_the_other_honestly(tmp_path: Path) -> None:
    """R9: stop accepting, let running work finish for a grace period, then interrupt and save it."""
    replies = {"quick": Reply(text="a b c", hold_after=1), "stuck": Reply(text="d e f", fault=Fault("stall", 2))}
    async with ScriptedProvider(lambda request: replies[request.prompt]) as provider:
        config = CONFIG.format(url=provider.url) + "\n[server]\nshutdown_grace_seconds = 1.5\n"
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as http:

                async def ask(prompt: str) -> Answer:
                    return await http.post(CHAT, asking(prompt, stream=True))

                answers = [asyncio.ensure_future(ask(prompt)) for prompt in replies]
                await provider.received(2)
                ended = asyncio.ensure_future(asyncio.to_thread(server.terminate))
                await asyncio.sleep(0.3)
                for request in provider.requests:
                    request.release()
                quick, stuck = await asyncio.gather(*answers)
            assert await ended == 0
        assert (quick.text, quick.finish) == ("a b c", "stop")
        assert (stuck.text, stuck.finish) == ("d e", "length")
        assert stuck.chunks[-1]["holdfast"]["reason"] == "shutdown"
        with running_server(tmp_path, config) as server:
            async with Client(server.base_url) as http:
                runs = {run["text"]: run for run in (await http.get("/v1/runs")).json["data"]}
        assert runs["a b c"]["status"] == "completed"
        assert (runs["d e"]["status"], runs["d e"]["reason"]) == ("cancelled", "shutdown")


def _symbolic_link(data: Path) -> Path:
    data.with_name("linked").symlink_to(data)
    return data.with_name("linked")


def _hard_link(data: Path) -> Path:
    data.with_name("other").mkdir()
    (data.with_name("other") / "holdfast.db").hardlink_to(data / "holdfast.db")
    return data.with_name("other")


def _without_note(data: Path) -> Path:
    (data / "holdfast.db.lock").unlink()
    return data


@pytest.mark.parametrize("around", [lambda data: data, _symbolic_link, _hard_link, _without_note])
async def test_a_second_server_on_the_same_store_is_refused(tmp_path: Path, around: Callable[[Path], Path]) -> None:
    """R8.b: it would take the first one's runs for cut off; whatever name it knows the store by."""
    async with ScriptedProvider([Reply(text="a b", hold_after=1)]) as provider:
        config = CONFIG.format(url=provider.url)
        with running_server(tmp_path, config) as first:
            async with Client(first.base_url) as http:
                going = asyncio.ensure_future(http.post(CHAT, asking(stream=True)))
                request = await provider.received()
                second = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "holdfast",
                    "serve",
                    "--port",
                    "0",
                    "--config",
                    str(tmp_path / "holdfast.toml"),
                    env={
                        "PATH": "/usr/bin:/bin",
                        "HOLDFAST_DATA_DIR": str(around(tmp_path / "data")),
                        "HOLDFAST_OLLAMA": "off",
                    },
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                output, _ = await asyncio.wait_for(second.communicate(), 40)
                assert second.returncode != 0
                assert b"in use by another Holdfast" in output
                assert b"Traceback" not in output
                request.release()
                answer = await going
                assert (answer.text, answer.finish) == ("a b", "stop")
