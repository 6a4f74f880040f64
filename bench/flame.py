"""`make flame`: where the server's time goes while 250 streams get 20 tokens a second each, as a flame graph.

Samples a real server with py-spy, and draws docs/images/flame.svg: width is time in the interpreter, a frame stands on
the one that called it. `--raw FILE` draws what was sampled before instead.
"""

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.contenders import OTHER_CORE, Contender, free_port, holdfast, process
from bench.figures import paced_delay

FILE = Path(__file__).parent.parent / "docs" / "images" / "flame.svg"
STREAMS, SECONDS = 250, 14
WIDTH, ROW, MIN_SHARE = 1200, 18, 0.004
_LINE = re.compile(r" \((.*?)(:\d+)?\)$")
_ENTRY = ("run_forever", "Runner.run", "Thread.run")
"""What stands below these is how the process was started."""


@dataclass
class Frame:
    """A function, called by those below it."""

    name: str
    samples: int = 0
    above: dict[str, "Frame"] = field(default_factory=dict)


def fold(raw: str) -> Frame:
    """Collapsed stacks as a tree, by function."""
    root = Frame("all")
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        names = [_LINE.sub(lambda found: f" ({found[1]})", frame) for frame in stack.split(";")]
        entry = max((place for place, name in enumerate(names) if name.startswith(_ENTRY)), default=-1)
        frame = root
        frame.samples += int(count)
        for name in names[entry + 1 :] or ["the loop itself: waiting, reading, writing"]:
            frame = frame.above.setdefault(name, Frame(name))
            frame.samples += int(count)
    return root


def draw(root: Frame, title: str, file: Path) -> None:
    """Write the picture."""
    boxes: list[str] = []
    deepest = 0

    def place(frame: Frame, left: float, depth: int) -> None:
        nonlocal deepest
        width = frame.samples / root.samples * WIDTH
        if frame.samples / root.samples < MIN_SHARE:
            return
        deepest = max(deepest, depth)
        ours = "holdfast/" in frame.name
        told = html.escape(f"{frame.name}: {frame.samples / root.samples:.1%}")
        shown = html.escape(frame.name.split(" (")[0][: int(width / 6.6)]) if width > 24 else ""
        y = -(depth + 1) * ROW
        boxes.append(
            f'<g><title>{told}</title><rect class="{"h" if ours else "o"}" x="{left:.1f}" y="{y}" '
            f'width="{max(width - 0.6, 0.4):.1f}" height="{ROW - 1}" rx="2"/>'
            f'<text x="{left + 3:.1f}" y="{y + 13}">{shown}</text></g>'
        )
        for above in sorted(frame.above.values(), key=lambda found: found.name):
            place(above, left, depth + 1)
            left += above.samples / root.samples * WIDTH

    place(root, 0.0, 0)
    height = (deepest + 1) * ROW + 30
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-height + 4} {WIDTH} {height}" role="img" '
        f'font-family="ui-monospace, monospace" font-size="11"><title>{html.escape(title)}</title>'
        "<style>text{fill:#0f172a}.h{fill:#5eead4}.o{fill:#cbd5e1}.t{font-size:14px;font-weight:600}"
        "@media(prefers-color-scheme:dark){.t{fill:#e2e8f0}}</style>"
        f'<text class="t" x="0" y="{-height + 18}">{html.escape(title)}</text>\n' + "\n".join(boxes) + "\n</svg>\n"
    )


def sample() -> tuple[str, dict[str, float]]:
    """What py-spy sees, and the figures of the same time."""
    with tempfile.TemporaryDirectory() as folder:
        port, here = free_port(), Path(__file__).parent
        raw = Path(folder) / "raw.txt"
        with (
            process([sys.executable, str(here / "provider.py"), str(port)], OTHER_CORE, port),
            holdfast(f"http://127.0.0.1:{port}/v1", Path(folder)) as server,
        ):
            watching = subprocess.Popen(
                ["sh", "-c", f"sleep 4; exec py-spy record --gil -d 12 -r 200 -f raw -o {raw} --pid {server.pid}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            )
            found = uvloop.run(measure(server))
            watching.wait()
        return raw.read_text(), found


async def measure(server: Contender) -> dict[str, float]:
    return await paced_delay(server, STREAMS, 20, SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, help="draw these collapsed stacks instead of sampling")
    parser.add_argument("--keep", type=Path, help="keep the collapsed stacks here")
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--title", default=f"{STREAMS} live streams at 20 tokens a second: time in the interpreter")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    if options.raw is not None:
        draw(fold(options.raw.read_text()), options.title, options.out)
        return
    raw, found = sample()
    if options.keep is not None:
        options.keep.write_text(raw)
    draw(fold(raw), f"{options.title} ({found['cpu_us_per_chunk']:.0f} us of CPU a token)", options.out)
    print(f"{options.out}: {found['cpu_us_per_chunk']:.0f} us of CPU a token")


if __name__ == "__main__":
    main()
