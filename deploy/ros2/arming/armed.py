"""Whether the supervisor says that it may fly, as robot and policy hear it: whose word counts, and which is signed."""

from __future__ import annotations

import math
from collections.abc import Callable

from rclpy.node import Node
from std_msgs.msg import Bool, UInt8MultiArray

from deploy.ros2 import topics
from deploy.ros2.arming.signed import Beat, Verifier, read_key
from deploy.ros2.node.publishers import contest, named
from deploy.ros2.node.subscriptions import CONTEST, Inbox, Letterbox, Owner, command_quality, every
from deploy.system.clock import boottime

ASK = 0.25  # s between two challenges
CHEAP = 16  # signatures of strangers that a look checks


class Armed:
    """Without a key: `armed` of the one publisher that speaks; while a second one does, nothing becomes armed.

    With a key: `armed_beat`, whoever delivers it, as `signed.py` believes it; `armed` is not listened to.
    """

    def __init__(self, node: Node, key: str, silence_s: float) -> None:
        """`key` is the path of a file, or empty. ValueError for a bad key."""
        self._node, self.signed = node, bool(key)
        self.told: Callable[[Beat], None] = lambda beat: None  # is called with each signed beat
        self.said, self.arrived = False, -math.inf  # its last word, and when it came (s, monotonic)
        self.held = False  # whether a flight depends on it: nobody else may follow
        self._verifier: Verifier | None = None
        if key:
            secret = read_key(key)
            self._box: Letterbox = Letterbox(node, UInt8MultiArray, topics.BEAT, command_quality())
            self._verifier = Verifier(secret, self._box.topic, silence_s)
            self._owner = Owner(silence_s)
            self._challenges = node.create_publisher(UInt8MultiArray, topics.CHALLENGE, command_quality())
            every(node, ASK, self._challenge)
        else:
            self._inbox = Inbox(node, Bool, topics.ARMED, command_quality(), silence_s)
            self._box, self._owner = self._inbox, self._inbox.owner

    def close(self) -> None:
        """Listen no more."""
        self._box.close()

    @property
    def boxes(self) -> list[Letterbox]:
        """What it listens to."""
        return [self._box]

    @property
    def gid(self) -> bytes:
        """Of the publisher whose word counts."""
        return self._owner.gid

    @property
    def age(self) -> float:
        """Seconds since it was heard."""
        return boottime() - self.arrived

    def look(self) -> bool:
        """Whether something has been said."""
        self._owner.held = self.held
        if self._verifier is not None:
            return self._verify(self._verifier)
        if not self._inbox.take():
            return False
        self.said, self.arrived = self._inbox.message.data, self._inbox.arrived
        return True

    def _verify(self, verifier: Verifier) -> bool:
        news, cheap = False, CHEAP
        for letter in self._box.letters():
            if letter.sender != self._owner.gid:
                cheap -= 1
                if cheap < 0:
                    continue
            message = self._box.opened(letter)
            beat = verifier.accepts(bytes(message.data), letter.arrived) if message is not None else None
            if beat is None:
                self._owner.note(letter.sender, letter.arrived)
                continue
            self._owner.gid = letter.sender
            self.said, self.arrived, news = beat.armed, letter.arrived, True
            self.told(beat)
        return news

    def _challenge(self) -> None:
        if self._verifier is not None and self.age > ASK:
            self._challenges.publish(UInt8MultiArray(data=self._verifier.challenge))

    def contest(self, now: float) -> str:
        """Who else speaks on `armed`, which keeps all disarmed; empty when nobody does, or where it is signed."""
        if self._verifier is not None or not self._owner.rivals(now, CONTEST):
            return ""
        return contest(self._node, self._inbox, now)

    def strangers(self, now: float) -> str:
        """Who else speaks, for the diagnostics."""
        if self._verifier is None:
            return self.contest(now)
        rivals = [gid for gid in self._owner.rivals(now) if gid != self._owner.gid]
        if not rivals:
            return ""
        why = ", ".join(f"{count} x {reason}" for reason, count in self._verifier.refused.items())
        return f"{self._box.topic} of {named(self._node, self._box.topic, rivals[0])} is not believed: {why}"
