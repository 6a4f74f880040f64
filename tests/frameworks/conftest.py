"""Real frameworks, each in an environment of its own: collected where they are played (`make clients`)."""

import os

collect_ignore_glob = [] if os.environ.get("HOLDFAST_CLIENTS") else ["test_*.py"]
