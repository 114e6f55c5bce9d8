"""What the operating system can do for a control loop that must not be late: SCHED_FIFO and memory that stays put."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PRIORITY = 50  # of 1 to 99; the kernel's own interrupt threads have 50: below those that a driver may depend on
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
# What the two calls need, for the interpreter that is running. Both are lost when it is replaced.
ALLOW = "sudo setcap cap_sys_nice,cap_ipc_lock+ep {python}"


def _lock_memory(flags: int) -> bool:
    """Keep the pages of this process in memory; whether the kernel permits it."""
    library = ctypes.CDLL(None, use_errno=True)
    return bool((library.mlockall(flags) if flags else library.munlockall()) == 0)


@contextmanager
def realtime(priority: int = PRIORITY) -> Iterator[list[str]]:
    """The calling thread first in line for its processor. Yields what was not permitted, and how to permit it.

    Threads and processes that it starts meanwhile run at the usual priority. A priority of 0 changes nothing.
    """
    if not priority:
        yield []
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    refused = []
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError:
        refused.append("SCHED_FIFO")
    if not _lock_memory(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT):
        refused.append("mlockall")
    gc.collect()
    gc.freeze()  # what lives now need not be looked at again during the flight
    allow = ALLOW.format(python=os.path.realpath(sys.executable))
    try:
        yield [f"not permitted: {' and '.join(refused)}; deadlines will be missed under load; {allow}"] * bool(refused)
    finally:
        gc.unfreeze()
        if "mlockall" not in refused:
            _lock_memory(0)
        if "SCHED_FIFO" not in refused:
            # The flag stays: taking it away needs a privilege of its own, and at the usual priority it does nothing.
            os.sched_setscheduler(0, before[0] | os.SCHED_RESET_ON_FORK, before[1])
