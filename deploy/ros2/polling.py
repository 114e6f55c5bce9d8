"""Subscriptions that are looked into, at the moment a loop needs their newest message: no executor, no other thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

RATE_OVER = 0.25  # s over which a publisher's rate is measured


def sensor_quality(deadline: float | None = None) -> QoSProfile:
    """The newest only; none is sent twice. `deadline` in s is promised by publishers, demanded by subscribers."""
    quality = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    quality.deadline = Duration(seconds=deadline) if deadline else Duration()
    return quality


def command_quality(lifespan: float | None = None, deadline: float | None = None, depth: int = 1) -> QoSProfile:
    """The `depth` newest, delivered; what is older than `lifespan` (s) is not delivered any more."""
    quality = QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)
    quality.lifespan = Duration(seconds=lifespan) if lifespan else Duration()
    quality.deadline = Duration(seconds=deadline) if deadline else Duration()
    return quality


def latched_quality() -> QoSProfile:
    """The last word, also for those who join later."""
    return QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def every(node: Node, seconds: float, call: Callable[[], None]) -> None:
    """Call it regularly, in real time also where the node's clock is a simulation's, which may stop."""
    node.create_timer(seconds, call, clock=Clock(clock_type=ClockType.STEADY_TIME))


class _NoExecutor(CallbackGroup):
    """Keeps subscriptions out of every executor."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        """Never begun."""


class Inbox:
    """The newest message of one topic. Use it from one thread at a time."""

    def __init__(self, node: Node, kind: Any, topic: str, quality: QoSProfile) -> None:
        self.node, self.kind = node, kind
        self.subscription = node.create_subscription(
            kind, topic, lambda message: None, quality, callback_group=_NoExecutor()
        )
        self.topic = self.subscription.topic_name  # after namespace and remappings
        self.message: Any = None
        self.arrived = -math.inf  # s, monotonic
        self.publisher = b""  # who sent it
        self.rate = math.nan  # Hz, as the publisher counts its messages
        self._looked = time.monotonic()
        self._mark: tuple[bytes, float, int] | None = None

    def take(self) -> bool:
        """Look whether something has arrived; it is then in `message`."""
        now = time.monotonic()
        looked, self._looked = self._looked, now
        with self.subscription.handle:
            taken: Any = self.subscription.handle.take_message(self.kind, False)
        if taken is None:
            return False
        self.message, info = taken
        # Its age by the system's clock, which may be set at any time, within what the monotonic clock allows.
        age = (time.time_ns() - info["received_timestamp"]) * 1e-9
        self.arrived = now - min(max(age, 0.0), now - looked)
        self.publisher = bytes((info.get("publisher_gid") or {}).get("data", b""))
        self._count(info.get("publication_sequence_number"))
        return True

    def _count(self, number: int | None) -> None:
        if number is None:
            return
        publisher, began, first = self._mark or (b"", 0.0, 0)
        if self._mark is None or publisher != self.publisher:
            self._mark, self.rate = (self.publisher, self.arrived, number), math.nan
        elif self.arrived - began >= RATE_OVER:
            self.rate = (number - first) / (self.arrived - began)
            self._mark = (self.publisher, self.arrived, number)

    @property
    def age(self) -> float:
        """Seconds since the newest message arrived; infinite before the first."""
        return time.monotonic() - self.arrived

    def wait(self, patience: float) -> bool:
        """Take a message, waiting for it up to `patience` seconds."""
        if patience > 0.0 and (context := self.node.context.handle) is not None:
            wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context)
            wait_set.clear_entities()
            wait_set.add_subscription(self.subscription.handle)
            wait_set.wait(int(patience * 1e9))
        return self.take()

    def close(self) -> None:
        """Unsubscribe."""
        self.node.destroy_subscription(self.subscription)
