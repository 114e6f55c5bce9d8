"""The supervisor node: who may fly, and for how long.

It watches a flying robot's odometry, or an arm's joint_states or hand_pose. It arms only when asked (service `arm`) and
only while everything is as it should be; it says so twenty times a second on `armed`. It disarms, and stays so, when
the robot leaves its limits, the battery is low, the robot has stopped or is not heard, or the policy falls silent. The
emergency stop (service and topic `emergency_stop`) works at any time and is latched until `release`. A human who
overrides keeps the robot armed without a policy.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger

from deploy.realtime import PRIORITY, realtime
from deploy.ros2 import topics
from deploy.ros2.diagnostics import ERROR, OK, Diagnostics, Status
from deploy.ros2.emergency import EmergencyStop
from deploy.ros2.interlock import OVERRIDE, STOPPED
from deploy.ros2.parameters import declare, setting
from deploy.ros2.polling import Inbox, command_quality, every, latched_quality, sensor_quality

LOOK = 0.02  # s between two looks
BEAT = 0.05  # s between two words on `armed`
WATCHED = {"odometry": Odometry, "joint_states": JointState, "hand_pose": PoseStamped}


@dataclass
class Settings:
    """Parameters of the node. 0 switches a limit off."""

    watch: str = setting("odometry", f"the robot's state, one of: {', '.join(WATCHED)}", choices=tuple(WATCHED))
    fence: float = setting(3.0, "m from the origin on any axis that it may be", 0.0, 1e6)
    max_tilt: float = setting(100.0, "degrees between body and world z", 0.0, 180.0)
    max_speed: float = setting(5.0, "m/s", 0.0, 1e6)
    max_joint_speed: float = setting(0.0, "rad/s of any joint of joint_states", 0.0, 1e6)
    min_voltage: float = setting(3.5, "V that the battery must have to be armed", 0.0, 1e3)
    land_voltage: float = setting(3.1, "V below which, for a second, it is disarmed in flight", 0.0, 1e3)
    silence_s: float = setting(0.25, "s for which state, policy or human may be silent", 0.05, 10.0)
    auto_arm: bool = setting(False, "arm without being asked, once")
    priority: int = setting(PRIORITY, "of SCHED_FIFO, 1 to 99; 0: as any other program", 0, 99)


class SupervisorNode(Node):
    """Looks fifty times a second, in the executor's thread."""

    def __init__(self) -> None:
        super().__init__("supervisor")
        s = self.settings = declare(self, Settings)
        self.armed, self.reason = False, "not armed yet"
        self._flown = False  # the policy has flown since it was armed
        self._beat = self._low_since = -math.inf
        self._waits = s.auto_arm
        self._said = self.create_publisher(Bool, topics.ARMED, command_quality(deadline=2 * BEAT))
        self._look_at = {"odometry": self._flight, "joint_states": self._joints, "hand_pose": self._hand}
        self._watched = Inbox(self, WATCHED[s.watch], s.watch, sensor_quality())
        self._battery = Inbox(self, topics.BATTERY.message, topics.BATTERY.topic, sensor_quality())
        self._state = Inbox(self, String, topics.STATE, latched_quality())  # of robots that tell
        self._heartbeat = Inbox(self, Bool, topics.HEARTBEAT, command_quality())
        self._override = Inbox(self, Float64MultiArray, topics.override(topics.COMMAND), command_quality())
        self.emergency = EmergencyStop(self, "emergency_stop", lambda: self._disarm("emergency stop"), leads=True)
        self.create_service(SetBool, "arm", self._asked_to_arm)
        self.create_service(Trigger, "release", self._asked_to_release)
        self.diagnostics = Diagnostics(self, "", self._status)
        self._undo = ExitStack()
        for line in self._undo.enter_context(realtime(s.priority)):
            self.get_logger().warning(line)
        every(self, LOOK, self._look)

    def complaints(self) -> list[str]:
        """What is wrong now, for a robot in the air; empty when nothing is."""
        s, found = self.settings, []
        if self.emergency.pressed:
            found.append("emergency stop")
        if self._state.message is not None and self._state.message.data.startswith(STOPPED):
            found.append(f"the robot has {self._state.message.data}")
        if self._watched.age > s.silence_s:
            return [*found, f"nothing heard on {self._watched.topic}"]
        try:
            measured = self._look_at[s.watch]()
        except topics.TopicError as error:
            return [*found, str(error)]
        for value, limit, name, unit in measured:
            if limit and value > limit:
                found.append(f"{name}: {value:.2f} {unit}, more than {limit:g}")
        return found

    def _flight(self) -> list[tuple[float, float, str, str]]:
        """What is limited of a flying robot: value, limit, name, unit."""
        s, state = self.settings, topics.ODOMETRY.read(self._watched.message)
        self._demand_finite(np.concatenate([*state.values()]))
        tilt = math.degrees(math.acos(min(max(float(state["rotation"][8]), -1.0), 1.0)))
        return [
            (float(np.abs(state["position"]).max()), s.fence, "geofence", "m"),
            (tilt, s.max_tilt, "tilt", "degrees"),
            (float(np.linalg.norm(state["linear_velocity"])), s.max_speed, "speed", "m/s"),
        ]

    def _joints(self) -> list[tuple[float, float, str, str]]:
        """The same of an arm; joints whose speed is not measured say NaN."""
        self._demand_finite(np.array(self._watched.message.position))
        speed = max((abs(v) for v in self._watched.message.velocity if not math.isnan(v)), default=0.0)
        return [(speed, self.settings.max_joint_speed, "joint speed", "rad/s")]

    def _hand(self) -> list[tuple[float, float, str, str]]:
        """The same of an arm that tells no more than where its hand is."""
        place = topics.HAND.read(self._watched.message)["hand_position"]
        self._demand_finite(place)
        return [(float(np.abs(place).max()), self.settings.fence, "geofence", "m")]

    def _demand_finite(self, values: topics.Array) -> None:
        if not np.isfinite(values).all():
            raise topics.TopicError(f"{self._watched.topic} is not finite")

    def _voltage(self) -> float:
        """NaN while it is not known."""
        return float(self._battery.message.voltage) if self._battery.message is not None else math.nan

    def _against_arming(self) -> list[str]:
        s, found = self.settings, self.complaints()
        if s.min_voltage and not self._voltage() >= s.min_voltage:
            found.append(f"the battery has {self._voltage():.2f} V, less than {s.min_voltage:g} V")
        if self._overrides():
            found.append("a human overrides")
        if self.count_publishers(topics.COMMAND) > 1:
            found.append(f"two publishers on {self.resolve_topic_name(topics.COMMAND)}")
        return found

    def _overrides(self) -> bool:
        """Whether a human commands the robot now: as is heard here, or as the robot says."""
        says = self._state.message is not None and self._state.message.data.startswith(OVERRIDE)
        return says or self._override.age <= self.settings.silence_s

    def _arm(self) -> list[str]:
        """Arm unless something speaks against it: what does."""
        reasons = self._against_arming()
        if not reasons:
            self.armed, self.reason, self._flown, self._waits = True, "armed", False, False
            self._say()
            self.get_logger().info("armed")
        return reasons

    def _disarm(self, reason: str) -> None:
        if self.armed:
            self.armed, self.reason = False, reason
            self._say()
            self.diagnostics.publish()
            self.get_logger().warning(f"disarmed: {reason}")

    def _say(self) -> None:
        self._said.publish(Bool(data=self.armed))
        self._beat = time.monotonic()

    def _look(self) -> None:
        for inbox in (self._watched, self._battery, self._state, self._heartbeat, self._override):
            inbox.take()
        if self.armed:
            for reason in [*self.complaints(), *self._silence(), *self._empty()]:
                self._disarm(reason)
        elif self._waits:
            self._arm()
        if time.monotonic() - self._beat >= BEAT - 0.5 * LOOK:
            self._say()

    def _silence(self) -> list[str]:
        """A policy that flew, or a human who did, is heard no more."""
        s, heartbeat = self.settings, self._heartbeat
        overrides = self._overrides()
        flies = heartbeat.age <= s.silence_s and heartbeat.message.data
        self._flown = self._flown or flies or overrides
        if not self._flown or flies or overrides:
            return []
        if heartbeat.message is not None and not heartbeat.message.data:
            return ["the policy has handed over"]
        return ["the policy is not heard any more"]

    def _empty(self) -> list[str]:
        low, now = self._voltage() < self.settings.land_voltage, time.monotonic()
        if not low:
            self._low_since = now
        return [f"the battery has {self._voltage():.2f} V"] if now - self._low_since > 1.0 else []

    def _asked_to_arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data:
            reasons = self._arm()
            response.success, response.message = not reasons, "; ".join(reasons) or "armed"
        else:
            self._disarm("asked to")
            response.success, response.message = True, "disarmed"
        return response

    def _asked_to_release(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.emergency.release()
        response.success, response.message = True, "released; arm it again"
        return response

    def _status(self) -> Status:
        complaints = self.complaints()
        values: dict[str, Any] = {"armed": self.armed, "flown": self._flown, "voltage": self._voltage()}
        values |= {"override": self._overrides()}
        bad = complaints or self.reason not in ("armed", "not armed yet", "asked to", "the policy has handed over")
        return ERROR if bad else OK, "; ".join(complaints) or self.reason, values

    def close(self) -> None:
        """Disarm."""
        self._disarm("the supervisor was interrupted")
        self._undo.close()
        self.destroy_node()
