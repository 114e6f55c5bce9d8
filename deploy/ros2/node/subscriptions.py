"""Subscriptions that are looked into, at the moment a loop needs their newest message: no executor, no other thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

from deploy.system.clock import boottime

RATE_OVER = 0.25  # s over which a publisher's rate is measured
MOST = 256  # messages that may wait for a look, and that a look goes through: a stranger's flood, and ours among it
CONTEST = 1.0  # s for which a second publisher is remembered
NAMES = 16  # publishers that are remembered


def sensor_quality(deadline: float | None = None, depth: int = 1) -> QoSProfile:
    """The newest only; none is sent twice. `deadline` in s is promised by publishers, demanded by subscribers.

    A subscription of this quality without a deadline matches every publisher of its type.
    """
    quality = QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)
    quality.deadline = Duration(seconds=deadline) if deadline else Duration()
    return quality


def command_quality(lifespan: float | None = None, deadline: float | None = None, depth: int = 1) -> QoSProfile:
    """The `depth` newest, delivered; what is older than `lifespan` (s) is not delivered any more."""
    quality = QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)
    quality.lifespan = Duration(seconds=lifespan) if lifespan else Duration()
    quality.deadline = Duration(seconds=deadline) if deadline else Duration()
    return quality


def latched_quality(depth: int = 1) -> QoSProfile:
    """The last word, also for those who join later."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


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


@dataclass(frozen=True)
class Letter:
    """A message that has not been opened: what a flood brings costs microseconds."""

    content: bytes
    sender: bytes  # the publisher's gid
    number: int | None  # as the publisher counts them
    arrived: float  # s, monotonic


class Letterbox:
    """What has arrived on one topic since the last look. Use it from one thread at a time."""

    def __init__(self, node: Node, kind: Any, topic: str, quality: QoSProfile, depth: int = MOST) -> None:
        """`depth`: messages that may wait for a look; few where they are large."""
        self.node, self.kind = node, kind
        quality.depth = depth
        self.subscription = node.create_subscription(
            kind, topic, lambda message: None, quality, callback_group=_NoExecutor()
        )
        self.topic = self.subscription.topic_name  # after namespace and remappings
        self._looked = boottime()

    def letters(self, most: int = MOST) -> Iterator[Letter]:
        """The oldest first; no more than `most`."""
        now = boottime()
        looked, self._looked = self._looked, now
        wall = time.time_ns()
        for _ in range(most):
            with self.subscription.handle:
                taken: Any = self.subscription.handle.take_message(self.kind, True)
            if taken is None:
                return
            content, info = taken
            # Its age by the system's clock, which may be set at any time, within what the monotonic clock allows.
            age = min(max((wall - info["received_timestamp"]) * 1e-9, 0.0), now - looked)
            sender = bytes((info.get("publisher_gid") or {}).get("data", b""))
            yield Letter(content, sender, info.get("publication_sequence_number"), now - age)

    def opened(self, letter: Letter) -> Any:
        """The message; None where its bytes are not one."""
        try:
            return deserialize_message(letter.content, self.kind)
        except (RuntimeError, ValueError, UnicodeDecodeError, MemoryError):
            return None

    def wait(self, patience: float) -> None:
        """Until something arrives, up to `patience` seconds."""
        if patience > 0.0 and (context := self.node.context.handle) is not None:
            wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context)
            wait_set.clear_entities()
            wait_set.add_subscription(self.subscription.handle)
            wait_set.wait(int(patience * 1e9))

    def close(self) -> None:
        """Unsubscribe."""
        self.node.destroy_subscription(self.subscription)


class Owner:
    """Whose word counts on a topic: who spoke first, until that one has been silent. Others are kept in mind.

    Publishers are told apart by their gid, which the middleware gives them; without DDS security a stranger who writes
    packets of its own can forge it.
    """

    def __init__(self, silence_s: float) -> None:
        """After `silence_s` another may follow, unless `held`."""
        self.silence_s, self.held = silence_s, False
        self.gid, self.heard = b"", -math.inf  # of the owner, and when it spoke last (s, monotonic)
        self.strangers: dict[bytes, float] = {}  # gid: when it spoke last
        self.ignored = 0  # messages of strangers

    def accepts(self, sender: bytes, arrived: float) -> bool:
        """Whether this publisher's message counts."""
        if sender != self.gid and (not self.gid or (not self.held and arrived - self.heard > self.silence_s)):
            self.gid = sender
            self.strangers.pop(sender, None)
        if sender == self.gid:
            self.heard = max(self.heard, arrived)
            return True
        self.note(sender, arrived)
        return False

    def note(self, sender: bytes, arrived: float) -> None:
        """A message of a stranger came."""
        self.ignored += 1
        self.strangers[sender] = arrived
        while len(self.strangers) > NAMES:
            del self.strangers[min(self.strangers, key=lambda gid: self.strangers[gid])]

    def rivals(self, now: float, within: float = CONTEST) -> list[bytes]:
        """Who else has spoken lately."""
        return [gid for gid, heard in self.strangers.items() if now - heard <= within]


class Inbox(Letterbox):
    """The newest message of one topic, of the one publisher that owns it."""

    def __init__(
        self, node: Node, kind: Any, topic: str, quality: QoSProfile, silence_s: float = 0.5, depth: int = MOST
    ) -> None:
        """`silence_s`: after which silence of its publisher another's messages count."""
        super().__init__(node, kind, topic, quality, depth)
        self.owner = Owner(silence_s)
        self.message: Any = None
        self.arrived = -math.inf  # s, monotonic
        self.publisher = b""  # who sent it
        self.rate = math.nan  # Hz, as the publisher counts its messages
        self._mark: tuple[bytes, float, int] | None = None

    def take(self, most: int = MOST) -> bool:
        """Look whether something has arrived; it is then in `message`."""
        newest = None
        for letter in self.letters(most):
            if self.owner.accepts(letter.sender, letter.arrived):
                newest = letter
        if newest is None or (message := self.opened(newest)) is None:
            return False
        self.message, self.arrived, self.publisher = message, newest.arrived, newest.sender
        self._count(newest.number)
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
        return boottime() - self.arrived

    def waited(self, patience: float) -> bool:
        """Take a message, waiting for it up to `patience` seconds, whatever strangers send meanwhile."""
        end = boottime() + patience
        while not self.take():
            if (left := end - boottime()) <= 0.0:
                return False
            self.wait(left)
        return True
