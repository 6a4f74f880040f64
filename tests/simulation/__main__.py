"""`python -m tests.simulation`: thousands of schedules, and the seeds of those that break a promise."""

import argparse
import logging
import time
import warnings

from tests.simulation.schedule import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL)
    began, failed = time.monotonic(), 0
    for seed in range(options.seed, options.seed + options.schedules):
        try:
            play(seed)
        except Exception as error:
            failed += 1
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if options.verbose:
                raise
    seconds = time.monotonic() - began
    print(f"{options.schedules} schedules, {failed} broke a promise, {60 * options.schedules / seconds:,.0f} a minute")


if __name__ == "__main__":
    main()
