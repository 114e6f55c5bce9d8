"""The measuring end of simulators.py. It runs in a contestant's interpreter, so it needs the standard library only.

A contestant is a function of the number of environments that prepares them and returns `advance()`: one call, one
step of all of them, finished when it returns.
"""

import json
import sys
import time
from collections.abc import Callable

CHUNK_SECONDS = 0.02  # the clock is looked at this often: it must not count


def measure(advance: Callable[[], object], seconds: float) -> dict[str, float]:
    """Call `advance` for about `seconds`: number of calls, wall seconds, CPU seconds of all threads."""
    calls, chunk = 0, 1
    wall, cpu = time.perf_counter(), time.process_time()
    began = wall
    while True:
        for _ in range(chunk):
            advance()
        calls += chunk
        now = time.perf_counter()
        if now - wall >= seconds:
            return {"calls": calls, "wall": now - wall, "cpu": time.process_time() - cpu}
        if now - began < CHUNK_SECONDS:
            chunk *= 2
        began = now


def serve(contestants: dict[str, Callable[[int], Callable[[], object]]]) -> None:
    """Answer requests [name, environments, seconds] on stdin, one JSON line each, until it is closed.

    The first request for a number of environments prepares them and warms up; both are reported as `setup`.
    """
    ready: dict[tuple[str, int], Callable[[], object]] = {}
    for line in sys.stdin:
        name, num, seconds = json.loads(line)
        setup = 0.0
        if (name, num) not in ready:
            ready = {key: value for key, value in ready.items() if key[1] == num}  # memory
            began = time.perf_counter()
            advance = ready[name, num] = contestants[name](num)
            for _ in range(3):
                advance()
            setup = time.perf_counter() - began
        print(json.dumps({**measure(ready[name, num], seconds), "setup": setup}), flush=True)
