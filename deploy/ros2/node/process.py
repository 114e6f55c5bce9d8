"""A node as a process: one clear line and exit status 2 on bad input, exit status 0 on `INTERRUPTS`."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import signal
import sys
import time
from typing import Any

from deploy.ros2.node import network
from deploy.trust.text import printable
from sim.registry import load

# A terminal's, too: that is closed, Ctrl-Z (which would freeze the node while its robot flies), Ctrl-\.
TERMINAL = (signal.SIGHUP, signal.SIGTSTP, signal.SIGQUIT)
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, *TERMINAL)
AGAIN = 1.0  # s until an interrupt that had no effect is repeated
LEAVE = 3  # s for the middleware to let go of a node; on a quiet machine it takes 0.05


class Interrupted(BaseException):
    """What an interrupt raises: Python itself ends by SIGINT when a KeyboardInterrupt has passed through code in C."""


def run(node: str) -> int:
    """Import "module:Class" of a node, spin it until interrupted, close it; the exit status.

    Importing counts as running: launchers interrupt a node whenever they like, also one that is still starting.
    """
    faulthandler.enable()  # a crash of the middleware says where it was called
    asked = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        sys.unraisablehook = lambda _: None  # code in C that calls Python back swallows what we raise, loudly,
        signal.setitimer(signal.ITIMER_REAL, AGAIN)  # hence again
        raise Interrupted

    try:
        for number in (*INTERRUPTS, signal.SIGALRM):
            if number not in TERMINAL or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, interrupt)
        return _spin(node)
    except (Exception, Interrupted) as error:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        if asked:  # also where code in C made another error of it
            return 0
        if not isinstance(error, ValueError | OSError):
            raise
        print(f"error: {printable(error, 2000)}", file=sys.stderr)
        return 2


def _spin(name: str) -> int:
    rclpy = network.middleware("a ROS 2 node")
    from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions

    node: Any = None
    executor: Any = None
    try:
        try:
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        except RuntimeError as error:  # arguments that ROS 2 does not understand
            raise ValueError(network.insecure(error) or str(error).splitlines()[0]) from None
        node = _made(name)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()
    finally:
        for number in (signal.SIGALRM, *INTERRUPTS):
            signal.signal(number, signal.SIG_IGN)  # what follows leaves the robot safe: no second thoughts
        if node is not None:
            node.close()
        _end_after(LEAVE)
        if node is not None:
            node.destroy_node()
        if executor is not None:
            executor.shutdown(timeout_sec=0.1)
        rclpy.try_shutdown()
    return 0


class _Notice(ctypes.Structure):
    """The C library's `struct sigevent`."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("unused", ctypes.c_char * 32),
    ]


def _end_after(seconds: int) -> None:
    """Let a thread of the C library end the process, with exit status 0: what was to be made safe is safe.

    Fast DDS may wait for itself for ever while it leaves and others arrive or leave (eProsima/Fast-DDS issue 6513;
    measured: 1 of 440 processes, 8 interrupted together). It is called with Python's lock held, so that neither
    a thread nor a signal handler of Python would run.
    """
    library, thread = ctypes.CDLL(None), 2  # SIGEV_THREAD
    if not hasattr(library, "timer_create"):  # not Linux, or a C library older than 2.34
        return
    notice = _Notice(0, 0, thread, ctypes.cast(library._exit, ctypes.c_void_p))
    timer, times = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, seconds, 0)
    if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(notice), ctypes.byref(timer)) == 0:
        library.timer_settime(timer, 0, times, None)


def _made(name: str) -> Any:
    """The node; ValueError in one line where the middleware cannot keep it secure."""
    try:
        return load("node", name, {})()
    except RuntimeError as error:
        if line := network.insecure(error):
            raise ValueError(line) from None
        raise
