"""`python -m tests.simulation`: thousands of schedules, and the seeds of those that break a promise."""

import argparse
import logging
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.schedule import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="in this process, to the first that breaks a promise")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    began, failed = time.monotonic(), 0
    if options.verbose:
        _prepare(logging.INFO)
        for seed in seeds:
            play(seed)
    else:
        with ProcessPoolExecutor(options.processes, initializer=_prepare, initargs=(logging.CRITICAL,)) as processes:
            for found in processes.map(_play, seeds, chunksize=10):
                if found:
                    failed += 1
                    print(found, flush=True)
    pace = 60 * options.schedules / (time.monotonic() - began)
    print(f"{options.schedules} schedules, {failed} broke a promise, {pace:,.0f} a minute")
    raise SystemExit(1 if failed else 0)


def _prepare(level: int) -> None:
    warnings.simplefilter("ignore")
    logging.basicConfig(level=level)


def _play(seed: int) -> str:
    """What went wrong, if anything."""
    try:
        play(seed)
    except Exception as error:
        found: BaseException = error
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        return f"seed {seed}: {type(found).__name__}: {found}"
    return ""


if __name__ == "__main__":
    main()
