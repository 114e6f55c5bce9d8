"""ROS domains for tests: no two tests hear each other, also of different sessions."""

import fcntl
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_domain() -> Iterator[int]:
    """A ROS domain that no other test of this machine uses now, as a number."""
    for number in random.SystemRandom().sample(range(1, 102), 101):  # 0 is everybody's, 102 and more are not portable
        with (Path(tempfile.gettempdir()) / f"ros-domain-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    raise AssertionError("all 101 ROS domains are in use")
