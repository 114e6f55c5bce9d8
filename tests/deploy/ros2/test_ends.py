"""A flight that is to end before it has begun: while its log opens, its policy rehearses or its signals are awaited."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("rclpy")

import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from deploy import PolicyFile
from deploy.drivers.ros2 import Ros2
from deploy.guard import Guard
from deploy.ros2 import policy as node_module
from deploy.ros2.policy import PolicyNode
from deploy.ros2.settings import Settings
from deploy.trust.content import PRETRAINED
from tests.deploy.ros2.bench import PATIENCE
from tests.deploy.ros2.domain import own_domain

ENDS: dict[str, Callable[[PolicyNode], object]] = {
    "deactivated": lambda node: node._end("deactivated"),
    "interrupted": lambda node: node._end("interrupted"),
    "emergency stop": lambda node: node._stop(),
}


class Robot:
    """What the node asks of its driver. It was flown before, and that flight's end must not end this one."""

    falls, clock = True, time.monotonic  # without a flight controller

    def __init__(self) -> None:
        self.done, self.finished, self.withdrawn = True, "of before", threading.Event()

    def finish(self, reason: str) -> None:
        self.finished, self.done = self.finished or reason, True

    def withdraw(self) -> None:
        self.withdrawn.set()


class Ready(PolicyNode):
    """Without a graph: it is configured, and all is ready."""

    def __init__(self, log: str) -> None:
        file = PolicyFile.load(PRETRAINED / "quad_any.onnx")
        self.robot, self.opens = Robot(), threading.Event()
        self.log = MagicMock(close=lambda patience: "")
        self.settings = SimpleNamespace(log=log, priority=0, transfer=False)  # type: ignore[assignment]
        self.driver: Any = self.robot
        self.file, self._controller, self.record, self._journal = None, MagicMock(), None, None
        self._guard, self._sight, self._flown = Guard(file.inputs, file.outputs), None, threading.Event()  # type: ignore[assignment]
        self.diagnostics, self._crash, self._thread = MagicMock(), None, None

    def not_ready(self) -> list[str]:
        return []

    def get_logger(self) -> Any:
        return MagicMock()

    def _recorder(self) -> Any:
        assert self.opens.wait(PATIENCE)
        return self.log


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each flight was to end at once."""
    begun = list[bool]()

    def run(policy: Any, driver: Any, guard: Any, **named: Any) -> str:
        begun.append(driver.done)
        return "a record"

    monkeypatch.setattr(node_module, "run", run)
    monkeypatch.setattr(node_module, "Journal", MagicMock())
    return begun


@pytest.mark.parametrize("reason", ENDS)
def test_who_is_to_end_while_the_log_opens_does_not_take_off(flights: list[bool], reason: str) -> None:
    """`connect` forgot that it was asked to: it took off, and lost its publishers in the air."""
    node = Ready(log="here")
    node._guard.stop()  # released since, as the flight before ended
    assert node.on_activate(None) == TransitionCallbackReturn.SUCCESS  # type: ignore[arg-type]
    assert not node._guard.emergency and not node.robot.done and node.robot.finished == ""
    flying = node._thread
    assert flying is not None
    ending = threading.Thread(target=ENDS[reason], args=[node])
    ending.start()
    while not node.robot.done:
        time.sleep(0.001)
    assert not node.robot.withdrawn.is_set()
    node.opens.set()
    flying.join(PATIENCE)
    ending.join(PATIENCE)
    assert not flights and node._flown.is_set() and node.robot.finished == reason and node._crash is None
    assert node._guard.emergency == (reason == "emergency stop")
    assert node.robot.withdrawn.is_set() == (reason != "emergency stop")


def test_after_a_flight_another_begins(flights: list[bool]) -> None:
    node = Ready(log="")
    for _ in range(2):
        assert node.on_activate(None) == TransitionCallbackReturn.SUCCESS  # type: ignore[arg-type]
        assert node._flown.wait(PATIENCE) and node._end("deactivated") == TransitionCallbackReturn.SUCCESS
    assert flights == [False, False]


@pytest.mark.parametrize("broken", ["_recorder", "Journal"])
def test_a_log_that_breaks_down_ends_the_flight_at_once(
    flights: list[bool], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Nobody said that it had flown: the node waited for half a minute to land it."""
    node = Ready(log="here")
    node.opens.set()
    closed: list[float] = []
    node.log.close = lambda patience: closed.append(patience) or ""
    where = node if broken == "_recorder" else node_module
    monkeypatch.setattr(where, broken, MagicMock(side_effect=RuntimeError("no log")))
    node.on_activate(None)  # type: ignore[arg-type]
    assert node._flown.wait(PATIENCE) and node._end("deactivated") == TransitionCallbackReturn.ERROR
    assert node.ended == "RuntimeError: no log" and not flights
    assert len(closed) == (broken == "Journal")


@pytest.fixture
def driver() -> Iterator[Ros2]:
    """Of a node to which nobody speaks."""
    with own_domain() as domain:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        try:
            yield Ros2(
                PolicyFile.load(PRETRAINED / "quad_any.onnx"), Node("alone", context=context), Settings(connect_s=60.0)
            )
        finally:
            rclpy.shutdown(context=context)


@pytest.mark.parametrize("while_waiting", [False, True])
def test_a_driver_that_is_to_finish_connects_to_nothing(driver: Ros2, while_waiting: bool) -> None:
    if while_waiting:
        waiting = threading.Thread(target=driver.connect)
        waiting.start()
        time.sleep(0.1)
        assert waiting.is_alive()
        driver.finish("deactivated")
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
    else:
        driver.finish("deactivated")
        driver.connect()
    assert driver.done and driver.finished == "deactivated" and not driver._publishers
    driver.stop()
    assert driver.report()[0] == "ended: deactivated"


def test_a_driver_that_is_to_finish_waits_for_no_listener(driver: Ros2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "missing", list)
    waiting = threading.Thread(target=driver.connect)
    waiting.start()
    while not driver._publishers:
        time.sleep(0.001)
    driver.finish("interrupted")
    waiting.join(PATIENCE)
    assert not waiting.is_alive() and driver.done and driver.finished == "interrupted"
    driver.stop()
