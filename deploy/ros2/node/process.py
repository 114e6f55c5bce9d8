"""A node as a process: one clear line and exit status 2 on bad input, exit status 0 on SIGINT and SIGTERM, always."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any

from deploy.ros2.node import network
from deploy.trust.text import printable
from sim.registry import load

AGAIN = 1.0  # s until an interrupt that had no effect is repeated


class Interrupted(BaseException):
    """What an interrupt raises: Python itself ends by SIGINT when a KeyboardInterrupt has passed through code in C."""


def run(node: str) -> int:
    """Import "module:Class" of a node, spin it until interrupted, close it; the exit status.

    Importing counts as running: launchers interrupt a node whenever they like, also one that is still starting.
    """
    asked = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        sys.unraisablehook = lambda _: None  # code in C that calls Python back swallows what we raise, loudly,
        signal.setitimer(signal.ITIMER_REAL, AGAIN)  # hence again
        raise Interrupted

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
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
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # what follows leaves the robot safe: no second thoughts
        if node is not None:
            node.close()
        if executor is not None:
            executor.shutdown(timeout_sec=0.1)
        rclpy.try_shutdown()
    return 0


def _made(name: str) -> Any:
    """The node; ValueError in one line where the middleware cannot keep it secure."""
    try:
        return load("node", name, {})()
    except RuntimeError as error:
        if line := network.insecure(error):
            raise ValueError(line) from None
        raise
