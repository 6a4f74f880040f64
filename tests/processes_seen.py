"""What /proc says about processes, for tests that want to see them dead."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """It runs or could; one that has ended and was not waited for does not."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def living_children() -> set[int]:
    """The children of this process, whichever thread has started them."""
    while True:
        try:
            threads = [(thread / "children").read_text() for thread in Path("/proc/self/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # A thread has ended meanwhile, and its children are another's now.
        return {pid for children in threads for pid in map(int, children.split()) if is_alive(pid)}
