"""A human's hands on ROS 2: cmd_vel as any teleoperation node publishes it, the gripper, and verdicts on episodes.

    cmd_vel         geometry_msgs/Twist or TwistStamped, whichever is published: the hand's velocity, m/s, in the world
    gripper_closed  std_msgs/Bool
    verdict         std_msgs/String: keep, success, failure, redo or quit

A velocity that is older than STALE counts as zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, String

from deploy.ros2.node import network
from deploy.ros2.node.subscriptions import Inbox, command_quality, sensor_quality
from deploy.ros2.topics import WORLD, type_name
from deploy.teleop.devices import VERDICTS, TeleopCommand, TeleopError

STALE = 0.25  # s
VELOCITY, GRIPPER, VERDICT = "cmd_vel", "gripper_closed", "verdict"
KINDS = {type_name(kind): kind for kind in (Twist, TwistStamped)}


class Topics:
    """The topics of a namespace. The node is its own, unless one is given."""

    help = f"topics {VELOCITY}, {GRIPPER}, {VERDICT}: {', '.join(VERDICTS)}"

    def __init__(self, namespace: str = "", node: Node | None = None) -> None:
        self._owner = node is None
        self._started = node is None and not rclpy.ok()
        if self._started:
            network.keep_to_this_machine()
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        try:
            self.node = node or Node("teleop", namespace=namespace or None)
        except NameValidationException as error:  # in several lines
            if self._started:
                rclpy.shutdown()
            raise TeleopError(f"ros2:{namespace}: {str(error).splitlines()[0]}") from None
        self._velocity: Inbox | None = None  # until it is known which type is published
        self._gripper = Inbox(self.node, Bool, GRIPPER, command_quality())
        self._verdict = Inbox(self.node, String, VERDICT, command_quality(depth=10))
        self.begin()

    def begin(self) -> None:
        self._closed = False

    def read(self, speed: float) -> TeleopCommand:
        """`speed` bounds what the messages ask for. TeleopError for a message that cannot be followed."""
        asked, active = self._asked()
        changed = self._gripper.take() and self._gripper.message.data != self._closed
        self._closed ^= changed
        verdict = self._verdict.message.data if self._verdict.take(1) else ""
        if verdict and verdict not in VERDICTS:
            raise TeleopError(f"{self._verdict.topic}: {verdict!r} is not one of {', '.join(VERDICTS)}")
        return TeleopCommand(asked.clip(-speed, speed), self._closed, active or changed, verdict)

    def _asked(self) -> tuple[Any, bool]:
        """The velocity (3,) m/s, and whether somebody asks for one."""
        self._velocity = self._velocity or self._found()
        if self._velocity is None:
            return np.zeros(3), False
        self._velocity.take()
        message, topic = self._velocity.message, self._velocity.topic
        if message is None or self._velocity.age > STALE:
            return np.zeros(3), False
        if isinstance(message, TwistStamped):
            if message.header.frame_id not in ("", WORLD):
                raise TeleopError(f"{topic} is in the frame {message.header.frame_id!r}; it must be in {WORLD!r}")
            message = message.twist
        asked = np.array([message.linear.x, message.linear.y, message.linear.z])
        if not np.isfinite(asked).all():
            raise TeleopError(f"{topic} holds a velocity that is not finite")
        return asked, bool(asked.any())

    def _found(self) -> Inbox | None:
        """The velocity's topic, once somebody publishes it."""
        topic = self.node.resolve_topic_name(VELOCITY)
        kinds = [info.topic_type for info in self.node.get_publishers_info_by_topic(topic)]
        if not kinds:
            return None
        if kinds[0] not in KINDS:
            raise TeleopError(f"{topic} is a {kinds[0]}, not one of {', '.join(KINDS)}")
        return Inbox(self.node, KINDS[kinds[0]], VELOCITY, sensor_quality())

    def close(self) -> None:
        if self._owner:
            self.node.destroy_node()
        if self._started:
            rclpy.shutdown()
