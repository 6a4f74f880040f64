"""Runs the compliance suite of Open Responses against a real server over a scripted model (docs/clients.md).

    python scripts/try_open_responses.py SUITE [BUN]

SUITE is a checkout of the repository openresponses/openresponses, its packages installed; BUN the program that runs it
(the npm package `bun` has it), if it is not on the path. Ends with 1 when a case does not hold.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.testing import RecordedRequest, Reply, ScriptedProvider, tool_call  # noqa: E402
from tests.clients.world import make_config  # noqa: E402
from tests.serving import KEY, running_server  # noqa: E402


def respond(request: RecordedRequest) -> Reply:
    """A model that calls the suite's tool where it is given one, and otherwise says a few words."""
    names = [tool["function"]["name"] for tool in request.body.get("tools", [])]
    if "get_weather" in names:
        return Reply(calls=(tool_call("get_weather", location="San Francisco, CA"),))
    return Reply(text="One, two, three, four, five.", reasoning="They want to hear me count.")


async def main(suite: Path, bun: str) -> int:
    """Run it all; 0: every case holds."""
    with tempfile.TemporaryDirectory(prefix="open-responses-") as folder:
        async with ScriptedProvider(respond) as provider:
            with running_server(Path(folder), make_config(provider, Path(folder))) as server:
                where = ("--base-url", f"{server.base_url}/v1", "--api-key", KEY, "--model", "holdfast")
                process = await asyncio.create_subprocess_exec(
                    *(bun, "run", "bin/compliance-test.ts", *where, "--json"),
                    cwd=suite,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                )
                async with asyncio.timeout(120):
                    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out)
    print("| case | holds | why not |\n|---|---|---|")
    for result in found["results"]:
        print(f"| {result['id']} | {result['status']} | {'; '.join(result.get('errors') or [])} |")
    print(f"\n{found['summary']}")
    return 0 if found["summary"]["passed"] == found["summary"]["total"] > 0 else 1


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else "bun")))
