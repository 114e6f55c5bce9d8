"""`profile=true`: where the time of a training went, function by function."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES = 40


@contextmanager
def profiled(folder: Path) -> Iterator[None]:
    """Write profile.txt and profile.pstats (`python -m pstats`, snakeviz) of what is done meanwhile.

    In CPU seconds of the process, by functions of the main thread: compiled loops count as one function each, and what
    other threads do counts as that of the function that waits for them.
    """
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(LINES)
        profile.dump_stats(folder / "profile.pstats")
        (folder / "profile.txt").write_text(text.getvalue())
        print(f"profile: {folder / 'profile.txt'}", flush=True)
