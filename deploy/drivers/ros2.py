"""A robot on ROS 2 topics, as a driver: signals come in standard messages, commands go out (`deploy/ros2/topics.py`).

It flies only while `armed` says so, and its flight ends with the emergency stop, a human's override or a lost `armed`:
then it is silent, so that a robot with a flight controller lands by itself. One without is landed before; where it
cannot be, it gets the safe command once. Signals are taken by the control loop itself, at the moment it needs them;
whoever published a topic as the flight began owns it, and what others publish there is ignored and reported.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

try:
    import rclpy
except ModuleNotFoundError as error:
    if error.name != "rclpy":
        raise
    raise ValueError("driver=ros2 needs rclpy: source your ROS 2, or pip install 'sim2metal[ros]'") from None
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, String

from deploy.drivers import Entered, Reading
from deploy.policy_file import PolicyFile
from deploy.ros2 import topics
from deploy.ros2.arming.armed import Armed
from deploy.ros2.arming.emergency_stop import EmergencyStop
from deploy.ros2.node import network
from deploy.ros2.node.cameras import Cameras, told_view
from deploy.ros2.node.frames import Frames
from deploy.ros2.node.instructions import Instructions
from deploy.ros2.node.publishers import contest, publishers, several, trouble, unfit
from deploy.ros2.node.subscriptions import MOST, Inbox, command_quality, latched_quality, sensor_quality
from deploy.ros2.node.timing import PacedClock, Timing
from deploy.ros2.ros2_control import Joints, command_sources, joint_sources
from deploy.ros2.settings import Settings
from deploy.safety.envelope import LAST
from deploy.safety.fallback import Fallback
from deploy.safety.limits import limits_of
from deploy.system.clock import boottime
from sim.rotations import seen_from
from sim.spec import ANY_ROBOT, Group

Array = NDArray[Any]
HEARTBEAT_PERIOD = 0.05  # s
WAITING_PICTURES = 8  # messages that may wait for a look
LIFESPAN = 2.0  # periods for which a command may be on its way
BLIND_S = 0.035  # s without the robot's state, at least three periods, after which it is left to its own controller


class Ros2Error(ValueError):
    """The flight cannot begin; the message lists every reason."""


class Ros2(Entered):
    """One robot. The node is its caller's, or its own when it is made `from_config`."""

    Config: ClassVar[type] = Settings
    lands = False

    def __init__(self, policy: Any, node: Node, settings: Settings | None = None, armed: Armed | None = None) -> None:
        """`policy` is as a PolicyFile. TopicError where no topic can carry one of its signals.

        `armed` is the node's own ear for the supervisor, if it has one.
        """
        s = self.settings = settings or Settings()
        self.node, self.rate_hz, self.told = node, policy.rate_hz, Instructions(node, policy)
        self.tell = self.told.tell
        own = {(f"last_{c.name}", c.size) for c in policy.outputs}  # what nobody else can tell: what it sent before
        self._recalled: Group = tuple(signal for signal in policy.inputs if (signal.name, signal.size) in own)
        elsewhere = (*self.told.signals, *self._recalled)
        self._inputs: Group = tuple(signal for signal in policy.inputs if signal not in elsewhere)
        self._wanted: str = policy.robot
        self.robot = s.robot or policy.robot
        ranges = limits_of(self.robot).ranges  # the robot's, not those that a file tells of itself
        limits = ((c, *ranges.get(c.name, (c.low, c.high))) for c in policy.outputs)
        self.commands: Group = tuple(replace(c, low=low, high=high) for c, low, high in limits)
        self.num, self.real_time = 1, True
        self.steps: int | None = None
        joints = Joints.parse(policy.robot, s.joints, s.fingers)
        self._needed = topics.sources(self._inputs, joint_sources(self._inputs, joints), s.resize)
        self.sources = tuple(dict.fromkeys((*self._needed, topics.BATTERY)))  # a limit on its voltage may be set
        self.signals: Group = (*(signal for source in self.sources for signal in source.signals), *elsewhere)
        self._sent = {signal.name: np.zeros(signal.shape) for signal in self._recalled}
        self._flies = Fallback.fits(self.signals, self.commands)
        self.period = 1.0 / policy.rate_hz
        self.timing = Timing()
        self.done, self.finished = False, ""  # whether the flight is over, and why
        self._by_hand = False  # a human has it
        self.given_up: Callable[[], bool] = lambda: False  # whether the guard would have the motors stopped,
        self.bridges: Callable[[], bool] = lambda: False  # or repeats the last command
        self.emergency: EmergencyStop | None = None
        self._inboxes = {source.topic: self._inbox(source) for source in self.sources}
        self._cameras = Cameras(node, policy.inputs, s.view, told_view(policy.metadata))
        self._start: Array | None = None  # where wheels say that the flight began
        self._paced = next((self._inboxes[s.topic] for s in self._needed if s.paces), None)
        self.values: dict[str, topics.Values] = {}  # by topic, of its newest message
        self._frames = Frames(node.get_logger())
        self.armed, self._own_ear = armed or Armed(node, s.key, s.silence_s), armed is None
        self._robot = Inbox(node, String, topics.ROBOT, latched_quality())
        self._state = Inbox(node, String, topics.STATE, latched_quality())  # of a robot with a flight controller
        self._sinks = command_sources(self.commands, joints, s.commands, self.period, s.twist)
        self.overrides = [Inbox(node, s.message, topics.override(s.topic), sensor_quality()) for s in self._sinks]
        self._publishers: dict[str, Any] = {}
        self._topics = [sink.topic for sink in self._sinks]
        self._rules = policy.envelope.safe
        self._heartbeat = node.create_publisher(Bool, topics.HEARTBEAT, command_quality(deadline=2 * HEARTBEAT_PERIOD))
        self._beat = self._before = -math.inf
        self._pace = PacedClock(self.period)
        self._executor: SingleThreadedExecutor | None = None  # of its own node

    @classmethod
    def from_config(cls, config: Settings, policy: PolicyFile) -> Self:
        try:
            if not rclpy.ok():
                network.keep_to_this_machine()
                rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
            node = Node("deploy_run", namespace=config.namespace or None)
        except RuntimeError as error:
            raise (Ros2Error(line) if (line := network.insecure(error)) else error) from None
        made = cls(policy, node, config)
        made.emergency = EmergencyStop(
            made.node, "~/emergency_stop", lambda: made.finish("emergency stop"), made.armed if config.armed else None
        )
        made._executor = SingleThreadedExecutor()
        made._executor.add_node(made.node)
        return made

    def _inbox(self, source: topics.Source) -> Inbox:
        """For its messages; of pictures, which come in many packets, few wait, and lost packets may be sent again."""
        picture = any(s.is_picture for s in source.signals)
        quality = command_quality() if picture and self.settings.reliable else sensor_quality()
        return Inbox(self.node, source.message, source.topic, quality, depth=WAITING_PICTURES if picture else MOST)

    def _spin(self, executor: SingleThreadedExecutor) -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    def finish(self, reason: str) -> None:
        """End the flight at its next control step; the first reason counts. Callable from any thread."""
        self.finished = self.finished or reason
        self.done = True

    def abandon(self) -> None:
        self.stop()

    def connect(self) -> None:
        """Raises Ros2Error after `connect_s` with all that is missing. A flight that is to `finish` does not begin."""
        if own := self._executor is not None:
            self._spinner = threading.Thread(target=self._spin, args=[self._executor], name="ros2")
            self._spinner.start()
        deadline = boottime() + self.settings.connect_s
        while (reasons := self.missing()) and (own or not self.done):
            if boottime() >= deadline:
                raise Ros2Error("; ".join(reasons))
            time.sleep(self.period)
        self._by_hand, self.timing = False, Timing()
        if own:
            self.done, self.finished = False, ""  # an emergency stop that is over
        elif self.done:
            return
        self._sent = {signal.name: np.zeros(signal.shape) for signal in self._recalled}
        self._beat = self._before = -math.inf
        quality = command_quality(LIFESPAN * self.period)
        for sink in self._sinks:
            publisher = self._publishers[sink.topic] = self.node.create_publisher(sink.message, sink.topic, quality)
            while not (publisher.get_subscription_count() or self.done) and boottime() < deadline:
                time.sleep(self.period)
        self._hold(True)
        self._start = next((v["odometry"] for v in self.values.values() if "odometry" in v), None)
        if (paced := self._paced) is not None:
            paced.take()
            paced.waited(2.0 * self.period)  # the loop's steps begin when a measurement has just come

    def missing(self) -> list[str]:
        """Why a flight cannot begin now; empty when it can."""
        reading = self.read_now()
        reasons = [line for source in self._needed if (line := self._trouble(source, reading.age))]
        self._robot.take()
        if self._robot.message is not None and not self.settings.robot:
            self.robot = self._robot.message.data
        if self._wanted not in (self.robot, ANY_ROBOT) and not self.settings.transfer:
            reasons.append(f"the policy is for the robot {self._wanted!r}, here is {self.robot!r} (transfer flies it)")
        for topic in self._topics:
            if names := ", ".join(publishers(self.node, topic)):
                reasons.append(f"{topic} has a publisher already: {names} (a killed one counts for up to 20 s)")
            if not self.node.count_subscribers(topic):
                reasons.append(f"nobody listens to {self.node.resolve_topic_name(topic)}")
        if self.emergency is not None and self.emergency.pressed:
            reasons.append("the emergency stop is pressed")
        if self.settings.armed and not self._is_armed():
            reasons.append("not armed: call the supervisor's service `arm`")
        reasons += self.contests()
        if any(inbox.age < self.settings.silence_s for inbox in self.overrides):
            reasons.append("a human overrides")
        return reasons + self.told.missing() + self._cameras.missing()

    @property
    def _boxes(self) -> list[Inbox]:
        """What speaks for the robot, its target and its task."""
        return [*self._inboxes.values(), *self.told.boxes]

    def contests(self) -> list[str]:
        """Who publishes beside those who own what we listen to."""
        now = boottime()
        return [*filter(None, [self.armed.strangers(now), *(contest(self.node, box, now) for box in self._boxes)])]

    def unheard(self) -> list[str]:
        """Publishers that cannot be heard, and who commands beside us."""
        stops = self.emergency.boxes[:1] if self.emergency else []
        boxes = [*self.armed.boxes, *self._boxes, *self.overrides, *stops]
        return [*unfit(self.node, boxes), *several(self.node, self._topics)]

    def _trouble(self, source: topics.Source, age: Mapping[str, Any]) -> str:
        """What is wrong with one topic now."""
        inbox, unread = self._inboxes[source.topic], self._frames.unread(source.topic, self.values)
        known, oldest = {box.topic for box in self._boxes}, age.get(source.signals[0].name, math.inf)
        return trouble(self.node, source, inbox, unread, oldest, self.rate_hz, known, self._inputs)

    def _is_armed(self) -> bool:
        self.armed.look()
        return self.armed.said and self.armed.age < self.settings.silence_s

    def _hold(self, flies: bool) -> None:
        """While it flies, nobody new may speak for the robot, its target, its task or the supervisor."""
        self.armed.held = self._frames.held = flies
        for inbox in self._boxes:
            inbox.owner.held = flies

    def read(self) -> Reading:
        self._watch()
        if (paced := self._paced) is not None:
            paced.take()
            between = min(self.period, 1.0 / paced.rate) if paced.rate > 0.0 else self.period  # s, of its messages
            self._pace.align(paced.age, between)
            if paced.age > between - 0.5 * self.period:
                paced.waited(0.5 * self.period)  # the next one is due: better fresh and a little later
        now = boottime()
        self.timing.began(now - self._before, self.period)
        self._before = now
        return self.read_now(paced)

    def clock(self) -> float:
        """For the control loop: seconds, such that its steps begin when a measurement is about to come."""
        return self._pace.now()

    def _watch(self) -> None:
        """What ends a flight."""
        if self.emergency is not None:
            self.emergency.look()
            if self._is_emergency():
                self.finish("emergency stop")
        if self.settings.armed and not self._is_armed():
            self.finish("not armed any more")
        if any([inbox.take() for inbox in self.overrides]):
            self._by_hand = True
            self.finish("a human overrides")

    def read_now(self, taken: Inbox | None = None) -> Reading:
        """The newest measurement without waiting; `taken` has been looked into already."""
        signals: topics.Values = {}
        ages: dict[str, float] = {}
        for source in self.sources:
            inbox = self._inboxes[source.topic]
            if inbox.take() or inbox is taken:
                self._open(source, inbox)
            if source.topic in self.values:
                signals |= self.values[source.topic]
                ages |= dict.fromkeys((s.name for s in source.signals), self._age(inbox))
        for override in self.overrides:
            override.take()
        if self._start is not None and "odometry" in signals:
            signals["odometry"] = seen_from(self._start, signals["odometry"])
        signals |= self._sent
        seen, told = {name: np.asarray(value, np.float32)[None] for name, value in signals.items()}, self.told.read()
        return Reading({**seen, **told}, ages | dict.fromkeys((*told, *self._sent), 0.0))

    def _open(self, source: topics.Source, inbox: Inbox) -> None:
        if inbox.message is None:
            return
        try:
            self.values[source.topic] = source.read(inbox.message)
            self._frames.check(source, inbox.message, self.values)
        except topics.TopicError as error:
            self.values.pop(source.topic, None)  # the guard takes it for missing
            self._frames.forget(source.topic)
            self.node.get_logger().error(f"{inbox.topic}: {error}", throttle_duration_sec=1.0)

    def _age(self, inbox: Inbox) -> float:
        """Since it was measured where the message says when, at least since it arrived; negative: from the future."""
        stamp = getattr(getattr(inbox.message, "header", None), "stamp", None)
        if stamp is None:
            return inbox.age
        measured: float = self.node.get_clock().now().nanoseconds * 1e-9 - (stamp.sec + stamp.nanosec * 1e-9)
        return max(measured, inbox.age, key=abs)

    def write(self, commands: Mapping[str, Array]) -> None:
        bridged = (self.bridges() or self._is_blind()) and self._lands()  # the robot itself sees better
        over = (self.done and not self.falls) or self.given_up()
        self._publish(self._last() if over else {} if bridged else commands)
        now = boottime()
        if self._paced is not None:
            self.timing.latency.append(now - self._paced.arrived)
        self.timing.steps += 1
        if now - self._beat >= HEARTBEAT_PERIOD:
            self._beat = now
            self._heartbeat.publish(Bool(data=True))

    def _is_blind(self) -> bool:
        """Whether the robot's state has not come for a few periods: not yet bad, but too old to fly a quadrotor by."""
        return self._paced is not None and self._age(self._paced) > max(BLIND_S, 3.5 * self.period)

    def _publish(self, wanted: Mapping[str, Array]) -> None:
        """Those commands that are wanted."""
        for sink in self._sinks:
            if all(command.name in wanted for command in sink.signals):
                message = sink.message()
                if sink.frame:
                    message.header.stamp, message.header.frame_id = self.node.get_clock().now().to_msg(), sink.frame
                sink.fill(message, {c.name: np.asarray(wanted[c.name]).reshape(c.shape) for c in sink.signals})
                self._publishers[sink.topic].publish(message)
                sent = {f"last_{c.name}": np.array(wanted[c.name]) for c in sink.signals}
                self._sent |= {s.name: sent[s.name].reshape(s.shape) for s in self._recalled if s.name in sent}

    def _last(self) -> dict[str, Array]:
        """What is sent as a flight ends: nothing, where a flying robot then lands by itself, and nobody stopped it."""
        return {} if self._lands() and not self._is_emergency() else self._safe()

    def _is_emergency(self) -> bool:
        return self.emergency is not None and self.emergency.pressed

    @property
    def falls(self) -> bool:
        """Whether it does when its commands stop: nobody else flies it then, and nobody wants it off."""
        return self._flies and not (self._lands() or self._by_hand or self._is_emergency())

    def _lands(self) -> bool:
        """Whether the robot has a flight controller, and is one that can land."""
        self._state.take()
        return self._flies and self._state.message is not None

    def _safe(self) -> dict[str, Array]:
        """The policy file's, else as near to 0 as limits allow; nothing for what keeps what it was told by itself."""
        seen = {name: value for values in self.values.values() for name, value in values.items()}
        safe = {}
        for c in self.commands:
            rule = self._rules.get(c.name, (0.0,) * c.size)
            value = seen.get(rule, np.full(c.shape, math.nan)) if isinstance(rule, str) else np.reshape(rule, c.shape)
            if rule != LAST and np.isfinite(value).all():
                safe[c.name] = np.clip(value, c.low, c.high)
        return safe

    def emergency_stop(self) -> None:
        """The topic `emergency_stop` has told the robot."""

    def stop(self) -> None:
        """The safe command where it is wanted, then silence."""
        self._hold(False)
        if self._publishers:
            self._publish(self._last())
            self._heartbeat.publish(Bool(data=False))
            for publisher in self._publishers.values():
                publisher.wait_for_all_acked(Duration(seconds=0.1))
        if self._executor is not None:
            self._executor.shutdown(timeout_sec=1.0)
            self._spinner.join()
            self.close()

    def withdraw(self) -> None:
        """Publish no commands any more. Call it from the executor's thread, which must not meet what is destroyed."""
        for publisher in self._publishers.values():
            self.node.destroy_publisher(publisher)
        self._publishers = {}

    def close(self) -> None:
        """Leave the graph, after `withdraw` from the same thread; its own node, too."""
        self.withdraw()
        for box in (*self._boxes, *self.overrides, self._robot, self._state):
            box.close()
        self._cameras.close()
        if self._own_ear:
            self.armed.close()
        self.node.destroy_publisher(self._heartbeat)
        if self._executor is not None:
            self.node.destroy_node()
            rclpy.try_shutdown()

    def report(self) -> list[str]:
        return [*([f"ended: {self.finished}"] if self.finished else []), *self.timing.report()]
