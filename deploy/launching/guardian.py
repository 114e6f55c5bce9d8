"""Runs something in a child process and sees to it that no process outlives it, whichever of the two is killed.

Only on Linux: orphaned descendants come to these two processes ("subreapers") instead of to init, and the child is told
when its parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from deploy.system.interrupts import LANDING

PATIENCE = 5.0  # s between SIGINT and SIGTERM to what was left; to SIGKILL a robot's landing
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def descendants(pid: int) -> list[int]:
    """The processes below a process, those further down last."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:  # it has just ended
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _reap() -> None:
    """Take note of children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _name(pid: int) -> str:
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} [pid {pid}]"
    except OSError:
        return f"[pid {pid}]"


def end_descendants() -> None:
    """End what is still running below this process, politely first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        _reap()
        left = descendants(os.getpid())
        if not left:
            return
        print(f"[WARNING] [launch]: still running: {', '.join(map(_name, left))}; sending {number.name}", flush=True)
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + (LANDING if number == signal.SIGTERM else PATIENCE)
        while time.monotonic() < until and descendants(os.getpid()):
            time.sleep(0.02)
            _reap()


def _child(work: Callable[[], int], parent: int) -> int:
    os.setsid()  # a terminal's Ctrl-C reaches the parent only, which passes it on once
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:  # it died before it could be asked to tell
        return 1
    status = work()
    end_descendants()
    return status


def run(work: Callable[[], int]) -> int:
    """The exit status of `work`, done in a child process; 128 + N if signal N killed it.

    SIGINT and SIGTERM are passed on to the child. What it leaves running when it ends or is killed is ended, too; when
    this process is killed, the child gets SIGTERM.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    sys.stdout.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _child(work, parent)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    ended, status = 0, 0
    while ended != child:  # others are orphans that came to this process
        ended, status = os.waitpid(-1, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
