"""`make crash`: kill -9 and SIGTERM at hundreds of random moments, what was kept (R8), and what went on (R15, R16)."""

import argparse
import asyncio
import statistics

from tests.crashing import crash_rounds, survive_rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--stops", type=int, default=300, help="kills and stops of a server whose runs go on")
    parser.add_argument("--jobs", type=int, default=6, help="how many of these at once")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = asyncio.run(crash_rounds(options.crashes, options.seed, options.streams))
    print(f"{figures.crashes} crashes by SIGKILL, {figures.streams} streams cut off")
    print(f"characters that clients had seen   {figures.characters_seen:>10,}, missing afterwards: 0")
    print(f"events that clients had seen       {figures.events_seen:>10,}, missing or different afterwards: 0")
    print(f"characters saved                   {figures.characters_saved:>10,}, saved twice: 0")
    print(f"restart to ready, median           {statistics.median(figures.recovery_seconds):>10.2f} s")
    verdict = asyncio.run(survive_rounds(options.stops, options.seed, options.jobs))
    away = sorted(verdict.away_seconds) or [0.0]
    print(f"{options.stops} kills and stops while {verdict.runs} runs of {verdict.events:,} events went on")
    print(f"taken up again                     {verdict.resumed:>10,}, of these handed over: {verdict.handed_over}")
    print(f"completed with their whole text    {verdict.completed:>10,}, ended twice: 0, gaps or repetitions: 0")
    print(f"given up after three vain attempts {verdict.given_up:>10,}")
    print(f"connections of their readers       {verdict.connections:>10,}, told what the log does not have: 0")
    print(f"tools carried out                  {verdict.tools:>10,}, twice: 0, told as unknown: {verdict.unknown}")
    print(f"away, median and longest           {statistics.median(away):>10.2f} s, {away[-1]:.2f} s")


if __name__ == "__main__":
    main()
