"""How this process starts others in Python: with the working directory on their path only where it is on ours."""

from __future__ import annotations

import os
import sys


def python() -> list[str]:
    """The beginning of a command line.

    `python -m` searches the working directory first. Whoever was started otherwise (`sim2metal`) found our packages
    elsewhere; a folder of the same name that lies there must not hide them from the processes that it starts.
    """
    own = sys.flags.safe_path or (sys.path[:1] not in ([""], [os.getcwd()]))
    return [sys.executable, *["-P"] * own]
