"""Real nodes as processes in a ROS domain of their own, and a node of the test that watches and commands them."""

import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from nav_msgs.msg import Odometry
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger

from deploy.ros2 import topics
from deploy.ros2.arming.interlock import HOLDING, LANDING, STOPPED
from deploy.ros2.node.network import keep_to_this_machine
from deploy.ros2.node.subscriptions import command_quality, latched_quality, sensor_quality
from sim.spec import Signal
from tests.deploy.ros2.domain import own_domain

with warnings.catch_warnings():  # lark, which the message packages load with the first node, imports sre_parse
    warnings.simplefilter("ignore", DeprecationWarning)
    import rosidl_generator_py  # noqa: F401

ROOT = Path(__file__).resolve().parents[3]
CONFIGURE, CLEANUP, ACTIVATE, DEACTIVATE = (
    Transition.TRANSITION_CONFIGURE,
    Transition.TRANSITION_CLEANUP,
    Transition.TRANSITION_ACTIVATE,
    Transition.TRANSITION_DEACTIVATE,
)
QUIET = SubscriptionEventCallbacks(use_default_callbacks=False)  # its warning of another quality is deprecated
MOTORS = Signal("motor_command", (4,), low=0.0, high=1.0)
GENTLE = {"fence": 0.0, "max_tilt": 0.0, "max_speed": 0.0}  # what falls with the motors off may tumble
OF_STATE = {HOLDING: "hold", LANDING: "land", STOPPED: "off"}
PATIENCE = 60.0  # s for anything that should happen; the machine may be busy
CLIMBING = 12.0  # s; two where the machine keeps up
ANSWER = 8.0  # s after which a service is asked again


def spawn(module: str, *arguments: str, domain: int, **options: Any) -> subprocess.Popen[str]:
    """`python -m MODULE ARGUMENTS` in a domain that only this machine sees."""
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    keep_to_this_machine(environment)
    environment |= {"OMP_NUM_THREADS": "1", "RCUTILS_COLORIZED_OUTPUT": "0", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **options)


def ros_arguments(namespace: str = "", /, **parameters: Any) -> list[str]:
    """Parameters and namespace as ROS 2 takes them on the command line."""
    given = [
        f"{name}:={str(value).lower() if isinstance(value, bool) else value}" for name, value in parameters.items()
    ]
    return ["--ros-args", *(["-r", f"__ns:={namespace}"] if namespace else []), *(x for g in given for x in ("-p", g))]


class FellError(AssertionError):
    """A flight that was to end in a landing did not."""


def flown_again(flight: Callable[..., None]) -> Callable[..., None]:
    """A test that flies up to three times: a machine that stands still for a moment makes a hovering robot tumble."""

    @functools.wraps(flight)
    def flown(*given: Any, **named: Any) -> None:
        fell = []
        for _ in range(3):
            try:
                return flight(*given, **named)
            except FellError as error:
                fell.append(str(error))
        raise AssertionError(f"three flights fell: {fell}")

    return flown


class Graph:
    """Nodes under test and what they say. Times are monotonic, in s."""

    def __init__(self, namespace: str = "", domain: int | None = None) -> None:
        self.namespace, self.held = namespace, ExitStack()
        self.domain = self.held.enter_context(own_domain()) if domain is None else domain
        keep_to_this_machine()
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=self.domain, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node("bench", context=self.context, namespace=namespace or None)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.heard: dict[str, tuple[float, Any]] = {}  # by topic: when, and the message
        self.status: dict[str, Any] = {}  # newest diagnostics by node
        self.states: list[str] = []  # of the robot's flight controller, all of them
        self.rungs: list[tuple[float, str, str]] = []  # when, who: the rungs of its ladder, and the policy's
        self.turning = 0.0  # when the motors last got something
        sensor, reliable = sensor_quality(), command_quality()
        for kind, topic, quality in (
            (Odometry, "odometry", sensor),
            (PoseStamped, "target", sensor),
            (Float64MultiArray, "executed/command", sensor),
            (Bool, "armed", reliable),
            (Bool, "emergency_stop", latched_quality()),
            (String, "state", latched_quality()),
        ):
            hear = lambda m, topic=topic: self._hear(topic, m)  # noqa: E731
            self.node.create_subscription(kind, topic, hear, quality, event_callbacks=QUIET)
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._diagnose, 10)
        self._clients: dict[str, Any] = {}

    def _hear(self, topic: str, message: Any) -> None:
        now = time.monotonic()
        self.heard[topic] = now, message
        if topic == "state" and self.states[-1:] != [message.data]:
            self.states.append(message.data)
            self._rung("robot", OF_STATE.get(message.data.partition(":")[0], ""))
        if topic == "executed/command" and any(message.data):
            self.turning = now

    def _diagnose(self, message: DiagnosticArray) -> None:
        self.status[message.status[0].name.rpartition("/")[2]] = message.status[0]
        words = message.status[0].message.partition(":")[0].split()
        if words[:1] == ["failsafe"]:
            self._rung("policy", words[1])

    def _rung(self, who: str, rung: str) -> None:
        before = next((r for _, w, r in reversed(self.rungs) if w == who), "")
        if rung and rung != before:
            self.rungs.append((time.monotonic(), who, rung))

    def start(self, name: str, *, remap: str = "", **parameters: Any) -> None:
        """A node: robot, supervisor or policy; `remap` is one FROM:=TO."""
        arguments = [*ros_arguments(self.namespace, **parameters), *(["-r", remap] if remap else [])]
        self.processes[name] = spawn(f"deploy.ros2.{name}_node", *arguments, domain=self.domain)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> float:
        """Spin until the condition holds; how long that took, in s."""
        began = time.monotonic()
        while not condition():
            self.executor.spin_once(timeout_sec=0.005)
            assert time.monotonic() - began < seconds, f"{what}: not within {seconds:g} s; {self.says_all()}"
        return time.monotonic() - began

    def rest(self, seconds: float) -> None:
        """Spin for a while."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "time passes")

    def call(self, kind: Any, name: str, **request: Any) -> Any:
        """A service's answer."""
        client = self._clients.get(name) or self._clients.setdefault(name, self.node.create_client(kind, name))
        self.until(client.service_is_ready, f"the service {name}")
        for _ in range(5):  # an answer may be lost on the way to a client that was only just found
            future, asked = client.call_async(kind.Request(**request)), time.monotonic()
            self.until(lambda: future.done() or time.monotonic() - asked > ANSWER, "time")  # noqa: B023
            if future.done():
                return future.result()
        raise AssertionError(f"no answer of {name}; {self.says_all()}")

    def change(self, transition: int) -> bool:
        """A transition of the policy node's lifecycle; whether it succeeded."""
        return bool(self.call(ChangeState, "policy/change_state", transition=Transition(id=transition)).success)

    def refused(self, reason: str) -> None:
        """Told to fly it does not, in the end for this reason: before all topics are found it names others."""

        def named() -> bool:
            assert not self.change(ACTIVATE)
            self.rest(0.3)
            return reason in self.says("policy")

        self.until(named, f"refused: {reason}")

    @property
    def state(self) -> str:
        """Of the policy node's lifecycle."""
        return str(self.call(GetState, "policy/get_state").current_state.label)

    def arm(self, wanted: bool = True) -> Any:
        """The supervisor's answer."""
        return self.call(SetBool, "arm", data=wanted)

    def trigger(self, name: str) -> Any:
        """The answer of a service without arguments."""
        return self.call(Trigger, name)

    def break_robot(self, fault: str) -> bool:
        """Set the robot's parameter `fault`; whether that was accepted."""
        value = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=fault)
        parameters = [Parameter(name="fault", value=value)]
        return bool(self.call(SetParameters, "robot/set_parameters", parameters=parameters).results[0].successful)

    def position(self, topic: str = "odometry") -> np.ndarray:
        """m, world: of the robot, or of its target."""
        self.until(lambda: topic in self.heard, topic)
        pose = self.heard[topic][1].pose
        point = pose.pose.position if topic == "odometry" else pose.position
        return np.array([point.x, point.y, point.z])

    def away(self) -> float:
        """m from the target."""
        return float(np.linalg.norm(self.position() - self.position("target")))

    def says(self, node: str) -> str:
        """Its newest line of diagnostics."""
        return str(self.status[node].message) if node in self.status else ""

    def says_all(self) -> dict[str, str]:
        """The newest line of each node."""
        return {name: self.says(name) for name in self.status}

    def armed(self) -> bool:
        """What the supervisor says."""
        return "armed" in self.heard and self.heard["armed"][1].data

    def ready(self) -> None:
        """Robot on the ground, whole, disarmed and released; policy configured; no rung and no diagnostics seen."""
        assert self.break_robot("none")
        self.trigger("release")
        self.arm(False)
        self.until(lambda: not self.armed(), "disarmed")
        if self.state == "active":
            self.change(DEACTIVATE)
        if self.state == "unconfigured":
            assert self.change(CONFIGURE)
        self.until(lambda: self.trigger("robot/reset").success, "reset")
        self.until(lambda: self.position()[2] < 0.01 and self.upright(), "on the ground")
        self.rungs.clear()
        self.status.clear()  # what a node said before is not taken for its answer to what follows

    def fly(self, height: float = 0.3) -> None:
        """From `ready` into the air, by the book."""
        for _ in range(3):  # a machine that stands still for a moment makes it tumble, or stop
            self.until(lambda: self.arm().success, "armed")
            self.until(lambda: self._activate() or not self.armed(), "active")
            if self._climbs(height):
                return
            self.ready()
        raise FellError(f"three take-offs failed: {self.says_all()}")

    def hover(self) -> None:
        """From `ready` to its target."""
        for _ in range(3):
            self.fly(0.7)
            end = time.monotonic() + CLIMBING
            self.until(lambda: self.away() < 0.15 or not self.armed() or time.monotonic() > end, "there")  # noqa: B023
            if self.away() < 0.15 and self.armed():
                return
            self.ready()
        raise FellError(f"it does not hover: {self.says_all()}")

    def _climbs(self, height: float) -> bool:
        """Whether it is up there and upright, in a while."""
        end = time.monotonic() + CLIMBING

        def climbed() -> bool:
            return bool(self.position()[2] > height) and self.upright()

        self.until(lambda: climbed() or not self.armed() or time.monotonic() > end, "in the air")
        return climbed() and self.armed()

    def _activate(self) -> bool:
        self.rest(0.1)
        return self.change(ACTIVATE)

    def upright(self) -> bool:
        """Whether it leans by less than 20 degrees."""
        return bool(self.uprightness() > np.cos(np.radians(20.0)))

    def stopped_within(self, seconds: float, began: float) -> float:
        """The safe end state: motors off and on the ground, and nobody starts them again; when they stopped, in s."""

        def still() -> bool:
            heard, _ = self.heard.get("executed/command", (0.0, None))
            return heard > began and time.monotonic() - self.turning > 0.3

        self.until(still, "motors off")
        self.until(lambda: self.position()[2] < 0.02, "on the ground")
        reaction = max(self.turning - began, 0.0)
        assert reaction < seconds, f"the motors stopped after {reaction:.2f} s"
        return reaction

    def landed_within(self, seconds: float, began: float) -> None:
        """The other safe end state: it came down upright and slowly, and only there the motors stopped."""
        complaint = self.landing(seconds, began)
        if complaint:
            raise FellError(complaint)

    def landing(self, seconds: float, began: float) -> str:
        """Wait until it is down: what was wrong with that.

        A dip before the last descent may be quick if it ends above the ground: a machine that stood still as the
        commands were lost leaves a robot that leans, and falls at first.
        """
        fastest, leaned, tumbled, touched = 0.0, 1.0, 1.0, False

        def down() -> bool:
            nonlocal fastest, leaned, tumbled, touched
            height, climb, up = self.position()[2], self.climb(), self.uprightness()
            tumbled, touched = min(tumbled, up), touched or height < 0.06
            if height < 0.3:
                fastest, leaned = min(fastest, climb), min(leaned, up)
            elif not touched:
                fastest, leaned = 0.0, 1.0
            return bool(height < 0.06 and time.monotonic() - self.turning > 0.3)

        self.until(down, "landed")
        slow = fastest > -1.0 and self.turning - began < seconds
        upright = leaned > np.cos(np.radians(30.0)) and tumbled > np.cos(np.radians(80.0))
        angles = np.degrees(np.arccos([leaned, tumbled]))
        what = f"{self.turning - began:.2f} s, {fastest:.2f} m/s, {angles[0]:.0f} degrees (in the air {angles[1]:.0f})"
        return "" if slow and upright else what

    def climb(self) -> float:
        """m/s, upwards."""
        message = self.heard["odometry"][1]
        return float(topics.ODOMETRY.read(message)["linear_velocity"][2])

    def uprightness(self) -> float:
        """The cosine of the angle by which it leans."""
        q = self.heard["odometry"][1].pose.pose.orientation
        return float(1.0 - 2.0 * (q.x * q.x + q.y * q.y))

    def inactive(self) -> bool:
        """Whether the policy node has deactivated."""
        return self.state == "inactive"

    def close(self) -> None:
        """Interrupt every process that still runs."""
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for process in self.processes.values():
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)
        self.held.close()


@contextmanager
def graph(namespace: str = "", domain: int | None = None, **settings: dict[str, Any]) -> Iterator[Graph]:
    """Robot, supervisor and policy nodes, patient enough for a busy machine; `settings` by node."""
    made = Graph(namespace, domain)
    patient = {"silence_s": 1.0}
    try:
        made.start("robot", **{**patient, "hold_s": 0.3, **settings.get("robot", {})})
        made.start("supervisor", **{**patient, **settings.get("supervisor", {})})
        made.start("policy", **{"policy": "quad_any", **patient, "settle_s": 0.3, **settings.get("policy", {})})
        yield made
    finally:
        made.close()
