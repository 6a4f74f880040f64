"""Which tests failed beside others and had to be tried again: noted in between, listed at the end of `make test`.

`tried_again.py note` after the first run, `tried_again.py list` at the end. A test that needs this on a quiet machine
is broken, or the code is.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
NOTED = ROOT / ".pytest_cache" / "tried-again.json"


def note() -> None:
    """Remember what has failed just now."""
    names = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    NOTED.parent.mkdir(exist_ok=True)
    NOTED.write_text(json.dumps(names), encoding="utf-8")


def show() -> None:
    """Say which tests were tried twice, if any, and forget it."""
    names = json.loads(NOTED.read_text(encoding="utf-8")) if NOTED.exists() else []
    NOTED.unlink(missing_ok=True)
    if not names:
        print("No test had to be tried again.")
        return
    print(f"Tried again, because they failed beside others and passed alone ({len(names)}):")
    for name in names:
        print(f"  {name}")


if __name__ == "__main__":
    {"note": note, "list": show}[sys.argv[1]]()
