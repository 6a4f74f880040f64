"""The process's environment. It is read here and nowhere else; whatever else needs a variable is given a mapping.

Above: the commands. Below: nothing of ours.
"""

import os


def read_environment() -> dict[str, str]:
    """The variables as they are now."""
    return dict(os.environ)
