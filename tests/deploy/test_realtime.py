import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.system.realtime import realtime

pytestmark = pytest.mark.timed

ROOT = Path(__file__).parents[2]


def policy():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(0).sched_priority


def locked_kilobytes():
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmLck" in line).split()[1])


def test_the_thread_goes_first_while_it_flies_and_not_after():
    usual = policy()
    with realtime(7) as refused:
        permitted = not any("SCHED_FIFO" in line for line in refused)
        assert policy() == ((os.SCHED_FIFO, 7) if permitted else usual)
        assert gc.get_freeze_count() > 0
    assert policy() == usual
    assert gc.get_freeze_count() == 0
    assert locked_kilobytes() == 0


def test_what_it_starts_meanwhile_does_not():
    found = []
    with realtime(7):
        thread = threading.Thread(target=lambda: found.append(policy()))
        thread.start()
        thread.join()
        code = "import os; print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found[0][0] == int(child.stdout) == os.SCHED_OTHER


def test_priority_zero_changes_nothing():
    usual = policy()
    with realtime(0) as refused:
        assert (policy(), refused, gc.get_freeze_count()) == (usual, [], 0)


UNPRIVILEGED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
from deploy.system.realtime import realtime
with realtime() as refused:
    print(*refused)
"""


def test_what_is_not_permitted_is_said_with_what_permits_it():
    preload = "import deploy.system.realtime\n"  # before the user changes: the checkout may not be readable for another
    done = subprocess.run(
        [sys.executable, "-c", preload + UNPRIVILEGED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("not permitted: SCHED_FIFO and mlockall; deadlines will be missed under load; sudo ")
    assert "setcap cap_sys_nice,cap_ipc_lock+ep /" in done.stdout
