"""How this process starts others in Python: with `-P` where it was itself started so."""

from __future__ import annotations

import sys


def python() -> list[str]:
    """The beginning of a command line."""
    return [sys.executable, *["-P"] * sys.flags.safe_path]
