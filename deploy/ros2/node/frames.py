"""In which frame a robot's places are told: one and the same for all of them, since nothing is looked up in TF."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry

from deploy.ros2.topics import Source
from deploy.trust.text import printable

PLACES = (Odometry, PoseStamped)


class Frames:
    """Whether a driver's places are in one frame: that of the robot's own, as it was when the flight began."""

    def __init__(self, log: Any) -> None:
        """`log` of the node."""
        self.held = False  # whether a flight depends on it
        self._log = log
        self._own = ("", "")  # topic and frame of the robot's own place
        self._told: dict[str, str] = {}  # by topic: the frame of its newest message

    def check(self, source: Source, message: Any, values: dict[str, Any]) -> None:
        """To be called with each message. Removes from `values`, by topic, those that are in another frame.

        A message that names none is believed.
        """
        if source.message not in PLACES:
            return
        self._told[source.topic] = frame = message.header.frame_id.lstrip("/")
        if source.paces and not (self.held and self._own[1]):
            self._own = (source.topic, frame)
        own, wanted = self._own
        for topic, told in self._told.items():
            if told and wanted and told != wanted and values.pop(topic, None) is not None:
                text = f"{topic} is in {printable(told, 80)!r}, {own} in {printable(wanted, 80)!r}"
                self._log.error(f"{text}: give them in one frame", throttle_duration_sec=1.0)
