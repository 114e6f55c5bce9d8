"""What came over ROS 2 before a computer slept is old when it wakes up, whether it was looked at or not."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

import time

from deploy.ros2.node.subscriptions import Inbox, Owner
from deploy.ros2.node.timing import PacedClock
from tests.deploy.asleep import Sleep


class Handle(nullcontext[Any]):
    """A subscription that a message has reached."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    def take_message(self, kind: Any, raw: bool) -> Any:
        return self.waiting.pop(0) if self.waiting else None


def inbox() -> tuple[Inbox, Handle]:
    box, handle = object.__new__(Inbox), Handle()
    box.kind, box.subscription, box.owner = object, SimpleNamespace(handle=handle), Owner(0.5)  # type: ignore[assignment]
    box.message, box._mark, box._looked = None, None, PacedClock(0.01).now()
    box.opened = lambda letter: "here"  # type: ignore[method-assign]
    return box, handle


@pytest.mark.parametrize("looked", [True, False])
def test_a_message_of_before_the_sleep_is_old(monkeypatch: pytest.MonkeyPatch, looked: bool) -> None:
    """By the monotonic clock it was not, and what waited in the queue counted as having come since the last look."""
    sleep = Sleep(monkeypatch)
    box, handle = inbox()
    handle.waiting.append((b"", {"received_timestamp": time.time_ns()}))
    if looked:
        assert box.take() and box.age < 1.0
    sleep(3.0)
    assert looked or box.take()
    assert box.age >= 2.9


def test_the_loops_clock_has_slept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, clock = Sleep(monkeypatch), PacedClock(0.01)
    before = clock.now()
    sleep(3.0)
    assert clock.now() - before >= 3.0
