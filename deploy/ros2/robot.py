"""The robot node: a simulated robot on ROS 2 topics, in real time, with a flight controller's manners (`interlock.py`).

Publishes odometry, imu, target and battery, or an arm's joint_states, hand_pose, object_pose and goal; CAMERA/image_raw
and CAMERA/camera_info; what it is
(robot), whether it flies (state), what its motors got (executed/command), /tf where tf2 is installed and, with
sim_time, /clock. Takes command, or what an arm's controllers take (`joints.py`); override/COMMAND, armed and
emergency_stop. The parameter `fault` breaks it in flight.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from deploy.crazyflie.simulator.battery import Battery
from deploy.ros2 import topics
from deploy.ros2.arming.armed import Armed
from deploy.ros2.arming.emergency_stop import EmergencyStop
from deploy.ros2.arming.interlock import (
    AIRBORNE,
    ARMED,
    COMMANDED,
    DISARMED,
    FLYING,
    LADDER,
    OVERRIDE,
    STOPPED,
    Interlock,
)
from deploy.ros2.node.cameras import camera_info, info_topic
from deploy.ros2.node.diagnostics import OK, WARN, Diagnostics, Status
from deploy.ros2.node.parameters import declare, setting
from deploy.ros2.node.publishers import contest, unfit
from deploy.ros2.node.subscriptions import Inbox, command_quality, every, latched_quality, sensor_quality
from deploy.ros2.ros2_control import FORWARD, TWIST, TWISTS, WAYS, Joints, command_sources, joint_sources
from deploy.ros2.simulation.fault_injection import EMPTY, KINDS, Fault
from deploy.ros2.simulation.robot import world
from deploy.system.clock import boottime
from deploy.system.realtime import realtime
from sim.spec import Signal, pack, pictures, unpack

try:  # not among the wheels
    from tf2_msgs.msg import TFMessage
except ModuleNotFoundError:
    TFMessage = None

MOST_BEHIND = 0.01  # s; on a busy machine the simulated time slips: rushing after the clock, it would fly uncontrolled
SLOW_HZ = 20.0  # of the battery
FULL_CURRENT = 1.8  # A at full command: 250 mAh last for 8 minutes of it
STATE_S = 0.5  # s after which the state is said again: who is silent loses the topic to the next who speaks
LOOK, LINGER = 0.05, 1.0  # s between two looks at whether the task is over, and from then to the end of the node
KINDS_OF_NONSENSE = 32  # that are counted


@dataclass
class Settings:
    """Parameters of the node."""

    policy: str = setting("", "file of the policy whose task it is, with that task's settings")
    task: str = setting("", "whose signals it publishes, whose targets it gives; empty: the policy's, or quad_hover")
    robot: str = setting("", "airframe; empty: crazyflie. Tasks of an arm have their own")
    engine: str = setting("", "physics engine; empty: flight. Tasks of an arm have their own")
    physics_hz: float = setting(500.0, "rate of the physics, in real time; an arm's is its task's", 50.0, 5000.0)
    publish_hz: float = setting(100.0, "rate of the signals; the physics' rate must be a multiple of it", 1.0, 1000.0)
    settings: str = setting("", "of the task, in the place of the policy's: opponent=slow,steps=200")
    once: bool = setting(False, "end when the task is over: a game")
    commands: str = setting(FORWARD, f"how an arm is commanded, one of: {', '.join(WAYS)}", choices=WAYS)
    twist: str = setting(TWIST, f"what drives wheels on cmd_vel, one of: {', '.join(TWISTS)}", choices=TWISTS)
    hold_s: float = setting(
        0.2, "s for which the last command is held when none comes; then the motors stop", 0.01, 1.0
    )
    silence_s: float = setting(0.25, "s for which armed may be silent; it comes every 0.05 s", 0.05, 10.0)
    key: str = setting("", "file of the key that signs arming (python -m deploy.ros2.key); empty: it is not signed")
    battery: float = setting(4.1, "V at the beginning", 3.0, 4.3)
    seed: int = setting(0, "of the target", 0, 2**31 - 1)
    priority: int = setting(0, "of the physics: of SCHED_FIFO, 1 to 99; 0: as any other program", 0, 99)
    sim_time: bool = setting(False, "publish /clock, and stamp messages with it")
    fault: str = setting("none", "what is broken: " + ", ".join(KINDS) + "; with :TOPIC, only there", live=True)

    def __post_init__(self) -> None:
        every = self.physics_hz / self.publish_hz
        if every < 1.0 or abs(every - round(every)) > 1e-6:
            raise ValueError(f"physics_hz {self.physics_hz:g} is not a multiple of publish_hz {self.publish_hz:g}")


class RobotNode(Node):
    """The physics run in a thread of their own, on absolute deadlines."""

    def __init__(self) -> None:
        super().__init__("robot")
        s = self.settings = declare(self, Settings)
        self.fault = Fault(s.fault)
        self.world = world(s.policy, s.task, s.robot, s.engine, s.physics_hz, s.seed, s.settings)
        self.every = max(1, round(1.0 / (self.world.dt * s.publish_hz)))  # steps between two publications
        self.battery = Battery(s.battery) if self.world.battery else None
        self.joints = Joints(self.world.robot)
        commands = self.commands = self.world.commands
        limits = [np.concatenate([np.full(c.size, getattr(c, side)) for c in commands]) for side in ("low", "high")]
        self._low, self._high = limits
        self.interlock = Interlock(self.world.safe(), s.hold_s, s.silence_s, self.world.pilot)
        self.ignored: dict[str, int] = {}  # messages that made no sense, by what was wrong
        self.slipped = 0.0  # s that the simulation fell behind the clock
        self._parts = {name: unpack(commands, self.interlock.safe.copy()) for name in (topics.COMMAND, topics.OVERRIDE)}
        self._open(sensor_quality(2.0 * self.every * self.world.dt))
        self._armed = Armed(self, s.key, s.silence_s)
        self.emergency = EmergencyStop(self, "~/emergency_stop", lambda: None, self._armed)
        self.diagnostics = Diagnostics(self, self.world.robot, self._status)
        self._told_over = ""
        every(self, LOOK, self._look)
        self.create_service(Trigger, "~/reset", self._asked_to_reset)
        self.add_on_set_parameters_callback(self._set)
        self._reset = self._closing = False
        # Count, stamp, state and values to publish.
        self._news: SimpleQueue[tuple[int, Any, str, dict[str, Any]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run), threading.Thread(target=self._tell)]
        for thread in self._threads:
            thread.start()

    def _open(self, quality: Any) -> None:
        """Publishers and inboxes."""
        sources = topics.sources(self.world.signals, joint_sources(self.world.signals, self.joints))
        # Backwards, and what paces last: a policy waits for the first of those, and then takes the others.
        ordered = sorted(reversed(sources), key=lambda s: s.paces)
        again = command_quality(deadline=2.0 * self.every * self.world.dt, depth=2)  # pictures come in many packets
        of = {s: again if any(signal.is_picture for signal in s.signals) else quality for s in ordered}
        self._sources = [(s, self.create_publisher(s.message, s.topic, of[s])) for s in ordered]
        eyes = pictures(self.world.signals) if math.isfinite(self.world.view) else ()
        infos = {s: self.create_publisher(CameraInfo, info_topic(s), sensor_quality()) for s in eyes}
        self._infos = [(infos[s], camera_info(s, self.world.view, self.world.lens)) for s in eyes]
        if self.battery:
            self._battery = self.create_publisher(topics.BATTERY.message, topics.BATTERY.topic, sensor_quality())
        self._executed = self.create_publisher(Float64MultiArray, topics.EXECUTED, sensor_quality())
        self._label = self.create_publisher(String, topics.ROBOT, latched_quality())
        self._state = self.create_publisher(String, topics.STATE, latched_quality())
        self._stated, self._stated_at = "", -STATE_S
        self._label.publish(String(data=self.world.robot))
        self._ticks = self.create_publisher(Clock, "/clock", 1) if self.settings.sim_time else None
        self._transforms = self.create_publisher(TFMessage, "/tf", 100) if TFMessage else None
        self._body = f"{self.get_namespace()}/{topics.BODY}".lstrip("/")  # /tf is everybody's
        way, twist = self.settings.commands, self.settings.twist
        taken = command_sources(self.commands, self.joints, way, self.world.dt, twist)
        heard = ((topics.COMMAND, str, command_quality()), (topics.OVERRIDE, topics.override, sensor_quality()))
        self._inboxes = {
            base: [(s, Inbox(self, s.message, name(s.topic), quality, self.settings.hold_s)) for s in taken]
            for base, name, quality in heard
        }

    def _set(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        """`fault` may change in flight."""
        try:
            for parameter in parameters:
                if parameter.name == "fault":
                    self.fault = Fault(parameter.value)
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _asked_to_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self.interlock.state not in COMMANDED
        response.message = "back at the start" if response.success else "not while it flies"
        self._reset = self._reset or response.success
        return response

    def _run(self) -> None:
        """The physics' thread."""
        with realtime(self.settings.priority) as notes:
            for line in notes:
                self.get_logger().warning(line)
            self._simulate()

    def _simulate(self) -> None:
        period, every = self.world.dt, self.every
        due, step = boottime(), 0
        while not self._closing:
            due += period
            late = boottime() - due
            if late > MOST_BEHIND:
                due, self.slipped = due + late, self.slipped + late
            elif late < 0.0:
                time.sleep(-late)
            if self._reset:
                self.world.reset()
                self.interlock.reset()
                self.interlock.safe = self.world.safe()
                self.battery = Battery(self.settings.battery) if self.battery else None
                self._reset = False
            self._step()
            if step % every == 0:
                measured = Time(seconds=self.world.time) if self._ticks else self.get_clock().now()
                values = {**self.world.read(), topics.EXECUTED: self.motors}
                self._news.put((step // every, measured.to_msg(), self.interlock.summary, values))
            step += 1
        self._news.put(None)

    def _step(self) -> None:
        now = boottime()
        if self.fault.kind != "transport":
            self._listen()
        self.interlock.emergency = self.emergency.pressed
        motors = self.motors = self.interlock.motors(now)
        flying = self.interlock.state in AIRBORNE
        if self.battery:
            self.battery.draw(FULL_CURRENT * float(np.mean(motors * motors)), self.world.dt)
        self.world.step(motors, flying)
        if flying:
            self.interlock.safe = self.world.safe()
        if self.world.over:
            self.interlock.stop(self.world.over)

    def _listen(self) -> None:
        now = boottime()
        self.emergency.look()
        self._armed.held = self.interlock.state in (ARMED, *AIRBORNE)
        if self._armed.look():
            self.interlock.arm(self._armed.arrived, self._armed.said)
        if self.interlock.state == DISARMED:
            self.interlock.contested = self._armed.contest(now)
        for inbox, values in self._arrived(topics.COMMAND, self.interlock.state == FLYING):
            self.interlock.command(inbox.arrived, values)
        for inbox, values in self._arrived(topics.OVERRIDE, self.interlock.state == OVERRIDE):
            self.interlock.override(inbox.arrived, values)

    def _arrived(self, base: str, held: bool) -> Iterator[tuple[Inbox, NDArray[Any]]]:
        """The newest commands of those who own their topics: values (k,), within the limits."""
        for source, inbox in self._inboxes[base]:
            inbox.owner.held = held
            if not inbox.take():
                continue
            try:
                told = source.read(inbox.message)
            except topics.TopicError as error:
                self._ignore(f"{inbox.topic}: {error}")
                continue
            if not all(np.isfinite(values).all() for values in told.values()):
                self._ignore(f"{inbox.topic} is not finite")
                continue
            self._parts[base] |= {name: values.astype(np.float32) for name, values in told.items()}
            yield inbox, np.clip(pack(self.commands, self._parts[base]), self._low, self._high)

    def _ignore(self, why: str) -> None:
        why = why if why in self.ignored or len(self.ignored) < KINDS_OF_NONSENSE else "and more"
        self.ignored[why] = self.ignored.get(why, 0) + 1
        self.get_logger().warning(why, throttle_duration_sec=1.0)

    def _tell(self) -> None:
        """The publishing thread: a middleware that blocks must not keep the motors from being stopped."""
        while (news := self._news.get()) is not None:
            if self._news.empty():
                self._publish(*news)

    def _publish(self, count: int, stamp: Any, state: str, values: dict[str, Any]) -> None:
        now = boottime()
        if self._ticks:
            self._ticks.publish(Clock(clock=stamp))
        for source, publisher in self._sources:
            if publisher.get_subscription_count():
                self._send(source, publisher, values, stamp, now)
        for publisher, info in self._infos:
            info.header.stamp = stamp
            publisher.publish(info)
        if self.battery and count % max(1, round(self.settings.publish_hz / SLOW_HZ)) == 0:
            voltage = EMPTY if self.fault.kind == "battery" else self.battery.voltage
            charge = {"battery_voltage": np.array([voltage]), "battery_level": np.array(self.battery.level / 100.0)}
            self._send(topics.BATTERY, self._battery, charge, stamp, now)
        news = state != self._stated or now - self._stated_at > STATE_S
        if news and self.fault.kind != "transport":
            self._stated, self._stated_at = state, now
            self._state.publish(String(data=self._stated))
        if self._executed.get_subscription_count():
            motors = values[topics.EXECUTED]
            whole = Signal("_".join(c.name for c in self.commands), motors.shape)
            self._executed.publish(topics.command_message(whole, motors))

    def _send(self, source: topics.Source, publisher: Any, values: dict[str, Any], stamp: Any, now: float) -> None:
        message = source.message()
        if hasattr(message, "header"):
            message.header.stamp, message.header.frame_id = stamp, source.frame
        source.fill(message, self.fault.values(source.topic, values))
        if source is topics.ODOMETRY:
            message.child_frame_id = self._body
        treated = self.fault.message(source.topic, message, now)
        if treated is not None:
            publisher.publish(treated)
            if source is topics.ODOMETRY and self._transforms:
                self._transforms.publish(TFMessage(transforms=[topics.transform(treated)]))

    def _look(self) -> None:
        """Say how the task went, once it is over; then end, if that was asked for."""
        if self.world.over == self._told_over:
            return
        self._told_over = self.world.over
        if self._told_over:
            scores = ", ".join(f"{name} {value:.4g}" for name, value in self.world.scores().items())
            self.get_logger().info(f"{self._told_over} ({scores})")
            if self.settings.once:  # once those who listen know why it has stopped
                every(self, LINGER, lambda: os.kill(os.getpid(), signal.SIGINT))

    def _status(self) -> Status:
        lock = self.interlock
        values: dict[str, Any] = {"reason": lock.reason, "fault": self.fault.kind, "time_s": self.world.time}
        values |= {"slipped_s": self.slipped, **self.world.status()}
        values |= {"voltage": self.battery.voltage} if self.battery else {}
        values |= {f"ignored: {why}": count for why, count in self.ignored.items()}
        troubles = self._neighbours()
        values |= {f"publishers {k + 1}": line for k, line in enumerate(troubles)}
        return WARN if lock.state in (STOPPED, *LADDER) or troubles else OK, lock.summary, values

    def _neighbours(self) -> list[str]:
        """Who publishes beside those whose word counts, or what cannot be heard."""
        now, inboxes = boottime(), [inbox for boxes in self._inboxes.values() for _, inbox in boxes]
        beside = [self._armed.strangers(now), *(contest(self, inbox, now) for inbox in inboxes)]
        return [*filter(None, beside), *unfit(self, [*self._armed.boxes, self.emergency.boxes[0], *inboxes])]

    def close(self) -> None:
        """End the physics."""
        self._closing = True
        for thread in self._threads:
            thread.join()
        self.world.close()
