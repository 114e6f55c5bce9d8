"""In which frame a robot's places are told: one and the same for all of them, since nothing is looked up in TF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry

from deploy.ros2.topics import Source
from deploy.trust.text import printable

PLACES = (Odometry, PoseStamped)


class Frames:
    """Whether a driver's places are in one frame: that of the robot's own, as it was when the flight began.

    Where its own place is not told, or names no frame, it is that of the first place that names one.
    """

    def __init__(self, log: Any) -> None:
        """`log` of the node."""
        self.held = False  # whether a flight depends on it
        self._log = log
        self.differs: dict[str, str] = {}  # by topic: what keeps its newest message out
        self._own = ""  # topic of the robot's own place
        self._wanted = ("", "")  # topic and frame that the others are compared with
        self._told: dict[str, str] = {}  # by topic: the frame of its newest message

    def check(self, source: Source, message: Any, values: dict[str, Any]) -> None:
        """To be called with each message. Removes from `values`, by topic, those that are in another frame.

        A message that names none is believed.
        """
        if source.message not in PLACES:
            return
        self._told[source.topic] = message.header.frame_id.lstrip("/")
        if source.paces:
            self._own = source.topic
        named = {topic: told for topic, told in self._told.items() if told}
        if not (self.held and self._wanted[1]):
            first = self._own if self._own in named else next(iter(named), "")
            self._wanted = first, named.get(first, "")
        first, wanted = self._wanted
        two = f"{first} in {printable(wanted, 80)!r}: give them in one frame"
        self.differs = {t: f"is in {printable(told, 80)!r}, {two}" for t, told in named.items() if told != wanted}
        for topic, why in self.differs.items():
            if values.pop(topic, None) is not None:
                self._log.error(f"{topic} {why}", throttle_duration_sec=1.0)

    def forget(self, topic: str) -> None:
        """Its newest message could not be read."""
        self._told.pop(topic, None)
        self.differs.pop(topic, None)

    def unread(self, topic: str, values: Mapping[str, Any]) -> str:
        """What is wrong with the newest message of a topic that has no `values`; empty where it has."""
        return "" if topic in values else self.differs.get(topic, "carries something that cannot be read")
