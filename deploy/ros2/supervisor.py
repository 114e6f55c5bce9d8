"""The supervisor node: who may fly, and for how long.

It watches a flying robot's odometry, or an arm's joint_states or hand_pose. It arms only when asked (service `arm`) and
only while everything is as it should be; it says so twenty times a second on `armed`. It disarms, and stays so, when
the robot leaves its limits, the battery is low, the robot has stopped or is not heard, or the policy falls silent. The
emergency stop (service and topic `emergency_stop`) works at any time and is latched until `release`. A human who
overrides keeps the robot armed without a policy. With a `key`, what it says is signed on `armed_beat` too, and it arms
and releases only who can sign (`python -m deploy.ros2.ask`).
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, String, UInt8MultiArray
from std_srvs.srv import SetBool, Trigger

from deploy.ros2 import topics
from deploy.ros2.arming.emergency_stop import EmergencyStop
from deploy.ros2.arming.interlock import DISARMED, LADDER, OVERRIDE, STOPPED
from deploy.ros2.arming.signed import Signer, read_key
from deploy.ros2.node.diagnostics import ERROR, OK, WARN, Diagnostics, Status
from deploy.ros2.node.parameters import declare, setting
from deploy.ros2.node.publishers import contest, unfit
from deploy.ros2.node.subscriptions import Inbox, Letterbox, command_quality, every, latched_quality, sensor_quality
from deploy.system.clock import boottime
from deploy.system.realtime import PRIORITY, realtime
from deploy.trust.text import printable

LOOK = 0.02  # s between two looks
BEAT = 0.05  # s between two words on `armed`
UNSIGNED = "only who has the key may: python -m deploy.ros2.ask do=arm key=FILE, or do=release"
HEEDED = 1.0  # s in which a robot that is armed must say so
UPRIGHT = "it does not stand: call the service {}/robot/reset (simulated), or set it upright, and arm it again"
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
    key: str = setting("", "file of the key that signs arming (python -m deploy.ros2.key); empty: it is not signed")
    priority: int = setting(PRIORITY, "of SCHED_FIFO, 1 to 99; 0: as any other program", 0, 99)


class SupervisorNode(Node):
    """Looks fifty times a second, in the executor's thread."""

    def __init__(self) -> None:
        super().__init__("supervisor")
        s = self.settings = declare(self, Settings)
        self.armed, self.reason = False, "not armed yet"
        self._flown = False  # the policy has flown since it was armed
        self._since, self._releases = -math.inf, 0  # when it was armed; how often it released
        self._beat = self._low_since = -math.inf
        self._waits = s.auto_arm
        self._said = self.create_publisher(Bool, topics.ARMED, command_quality(deadline=2 * BEAT))
        self._look_at = {"odometry": self._flight, "joint_states": self._joints, "hand_pose": self._hand}
        self._watched = Inbox(self, WATCHED[s.watch], s.watch, sensor_quality())
        self._battery = Inbox(self, topics.BATTERY.message, topics.BATTERY.topic, sensor_quality())
        self._state = Inbox(self, String, topics.STATE, latched_quality(), 3.0)  # of robots that tell
        self._heartbeat = Inbox(self, Bool, topics.HEARTBEAT, command_quality())
        self._override = Inbox(self, Float64MultiArray, topics.override(topics.COMMAND), sensor_quality())
        self._own = Inbox(self, Bool, topics.ARMED, command_quality())  # ours, and a stranger's
        self._inboxes = (self._watched, self._battery, self._state, self._heartbeat, self._override, self._own)
        self._signer = self._sign(s.key) if s.key else None
        self.emergency = EmergencyStop(self, "emergency_stop", self._stopped, leads=True)
        self.create_service(SetBool, "arm", self._asked_to_arm)
        self.create_service(Trigger, "release", self._asked_to_release)
        self.diagnostics = Diagnostics(self, "", self._status)
        self._undo = ExitStack()
        for line in self._undo.enter_context(realtime(s.priority)):
            self.get_logger().warning(line)
        every(self, LOOK, self._look)

    def _sign(self, key: str) -> Signer:
        """What signed arming needs."""
        secret = read_key(key)
        self._signed = self.create_publisher(UInt8MultiArray, topics.BEAT, command_quality())
        self._answers = self.create_publisher(String, topics.ANSWER, command_quality(depth=10))
        self._challenges = Letterbox(self, UInt8MultiArray, topics.CHALLENGE, sensor_quality())
        self._requests = Letterbox(self, UInt8MultiArray, topics.REQUEST, sensor_quality())
        return Signer(secret, self._signed.topic_name, self._requests.topic)

    def complaints(self) -> list[str]:
        """What is wrong now, for a robot in the air; empty when nothing is."""
        s, found = self.settings, []
        if self.emergency.pressed:
            found.append("emergency stop")
        state = printable(self._state.message.data) if self._state.message is not None else ""
        if state.startswith(STOPPED):
            found.append(f"the robot has {state}")
        elif state.startswith(LADDER):
            found.append(f"the robot is {state}")
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
        if any(line.startswith("tilt") for line in found):
            found.append(UPRIGHT.format(self.get_namespace().rstrip("/")))
        if self._overrides():
            found.append("a human overrides")
        if self.count_publishers(topics.COMMAND) > 1:
            found.append(f"two publishers on {self.resolve_topic_name(topics.COMMAND)}")
        return [*found, *self._contests()]

    def _contests(self) -> list[str]:
        """Who publishes what we, or those we listen to, publish."""
        now = boottime()
        boxes = [self._watched, self._battery, self._heartbeat] + [self._own] * (self._signer is None)
        lines = [contest(self, box, now) for box in boxes]
        return [line for line in lines if line]

    def _overrides(self) -> bool:
        """Whether a human commands the robot now: as is heard here, or as the robot says."""
        says = self._state.message is not None and self._state.message.data.startswith(OVERRIDE)
        return says or self._override.age <= self.settings.silence_s

    def _arm(self) -> list[str]:
        """Arm unless something speaks against it: what does."""
        reasons = self._against_arming()
        if not reasons:
            self.armed, self.reason, self._flown, self._waits = True, "armed", False, False
            self._since = boottime()
            self._say()
            self.get_logger().info("armed")
        return reasons

    def _stopped(self) -> None:
        self._disarm("emergency stop")

    def _disarm(self, reason: str) -> None:
        if self.armed:
            self.armed, self.reason = False, reason
            self._say()
            self.diagnostics.publish()
            self.get_logger().warning(f"disarmed: {reason}")

    def _say(self) -> None:
        self._said.publish(Bool(data=self.armed))
        self._beat = boottime()
        if self._signer:
            beat = self._signer.beat(self._beat, self.armed, self.emergency.pressed, self._releases)
            self._signed.publish(UInt8MultiArray(data=beat))

    def _look(self) -> None:
        self._hold()
        for inbox in self._inboxes:
            inbox.take()
        if self._signer:
            self._heed(self._signer)
        if self.armed:
            for reason in [*self.complaints(), *self._silence(), *self._empty()]:
                self._disarm(reason)
        elif self._waits:
            self._arm()
        if boottime() - self._beat >= BEAT - 0.5 * LOOK:
            self._say()

    def _hold(self) -> None:
        """While it is armed, nobody new may speak for the robot, its battery or the policy."""
        self._watched.owner.held = self._battery.owner.held = self._state.owner.held = self.armed
        self._heartbeat.owner.held = self.armed and self._flown

    def _heed(self, signer: Signer) -> None:
        """Challenges, and requests that are signed."""
        for letter in self._challenges.letters():
            if (message := self._challenges.opened(letter)) is not None:
                signer.challenged(letter.sender, bytes(message.data))
        for letter in self._requests.letters():
            message = self._requests.opened(letter)
            request = signer.asked(bytes(message.data)) if message is not None else None
            if request is not None:
                self._answers.publish(String(data=signer.answer(request, self._do)))

    def _do(self, verb: str) -> tuple[bool, str]:
        """Arm, disarm or release: whether it was done, and what to say."""
        if verb == "arm":
            reasons = self._arm()
            return not reasons, "; ".join(reasons) or "armed"
        if verb == "disarm":
            self._disarm("asked to")
            return True, "disarmed"
        return True, self._release()

    def _release(self) -> str:
        self._releases += 1
        self.emergency.release()
        self._say()
        return "released; arm it again"

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
        low, now = self._voltage() < self.settings.land_voltage, boottime()
        if not low:
            self._low_since = now
        return [f"the battery has {self._voltage():.2f} V"] if now - self._low_since > 1.0 else []

    def _asked_to_arm(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data and self._signer:
            response.success, response.message = False, UNSIGNED
        else:
            response.success, response.message = self._do("arm" if request.data else "disarm")
        return response

    def _asked_to_release(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self._signer is None
        response.message = UNSIGNED if self._signer else self._release()
        return response

    def _unheeded(self) -> str:
        """Why the robot is not armed though we say that it is."""
        state = self._state.message.data if self._state.message is not None else ""
        if not self.armed or boottime() - self._since < HEEDED or not state.startswith(DISARMED):
            return ""
        return f"armed, but the robot says {printable(state)}"

    def _status(self) -> Status:
        complaints = [*filter(None, [self._unheeded()]), *self.complaints()]
        values: dict[str, Any] = {"armed": self.armed, "flown": self._flown, "voltage": self._voltage()}
        values |= {"override": self._overrides(), "emergency": self.emergency.who if self.emergency.pressed else "no"}
        troubles = [*self._contests(), *unfit(self, [*self._inboxes, self.emergency.boxes[0]])]
        values |= {f"publishers {k + 1}": line for k, line in enumerate(troubles)}
        bad = complaints or self.reason not in ("armed", "not armed yet", "asked to", "the policy has handed over")
        return ERROR if bad else WARN if troubles else OK, "; ".join(complaints) or self.reason, values

    def close(self) -> None:
        """Disarm, and see to it that this is heard."""
        self._disarm("the supervisor was interrupted")
        self._said.wait_for_all_acked(Duration(seconds=0.1))
        self._undo.close()
