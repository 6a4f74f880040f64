"""Signals of the process as calls on the running loop, for as long as a block runs.

Above: `serving` and the terminal, which decide what a signal means. Vocabulary: imports nothing of ours.
"""

import asyncio
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and how supervisors of processes ask for an end."""


@contextmanager
def signals_to(
    handler: Callable[[signal.Signals], None], numbers: Iterable[signal.Signals] = ENDING
) -> Generator[None]:
    """Hand signals to a callback, as steps of the running loop; afterwards they do what they did before.

    Must be entered in the main thread: the system delivers signals to no other.

    Args:
        handler: called with the signal that came.
        numbers: which signals.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number, action in before.items():
            loop.remove_signal_handler(number)
            # None: it was set by something that is not Python, and cannot be set from here.
            if action is not None:
                signal.signal(number, action)
