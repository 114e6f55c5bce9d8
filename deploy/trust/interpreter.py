"""How this process starts others in Python: with `-P` where it was itself started so."""

from __future__ import annotations

import sys

PYTHON = (sys.executable, *(("-P",) if sys.flags.safe_path else ()))
