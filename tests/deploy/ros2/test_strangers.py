"""Strangers on the graph: what they press stops, what they release, arm, measure or command changes nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool, Float32MultiArray, Float64MultiArray, UInt8MultiArray

from deploy.ros2 import topics
from deploy.ros2.arming.signed import read_key
from deploy.ros2.ask import Config, signed
from tests.deploy.ros2.bench import ACTIVATE, GENTLE, MOTORS, ROOT, Graph, graph, spawn

pytestmark = pytest.mark.timed

BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


@contextmanager
def strangers(lab: Graph, hz: float, *kinds: str) -> Iterator[None]:
    """A process that publishes all that at this rate."""
    process = spawn("tests.deploy.ros2.stranger", str(hz), *kinds, domain=lab.domain)
    try:
        lab.until(lambda: any(name == "stranger" for name in lab.node.get_node_names()), "a stranger")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def said(lab: Graph, node: str, text: str) -> bool:
    """Whether the node's diagnostics hold this text."""
    status = lab.status.get(node)
    return status is not None and any(text in v.value or text in v.key for v in [*status.values])


@pytest.mark.parametrize("quality", [QoSProfile(depth=10), BEST_EFFORT], ids=["ROS 2's default", "best effort"])
def test_a_button_of_any_quality_stops_the_motors(lab: Graph, quality: QoSProfile):
    lab.fly()
    needed = 6 if quality.reliability == ReliabilityPolicy.RELIABLE else 3
    quiet = PublisherEventCallbacks(use_default_callbacks=False)
    button = lab.node.create_publisher(Bool, "emergency_stop", quality, event_callbacks=quiet)
    lab.until(lambda: button.get_subscription_count() >= needed, "found by all")
    began = time.monotonic()
    for _ in range(1 if quality.reliability == ReliabilityPolicy.RELIABLE else 5):
        button.publish(Bool(data=True))
        lab.rest(0.05)
    lab.stopped_within(0.5, began)
    lab.until(lambda: said(lab, "supervisor", "/bench"), "it is told who pressed")
    button.publish(Bool(data=False))  # its own False releases nothing
    lab.rest(0.3)
    assert lab.arm().message.startswith("emergency stop")
    lab.node.destroy_publisher(button)


def test_a_best_effort_joystick_overrides(lab: Graph):
    joystick = lab.node.create_publisher(Float64MultiArray, "override/command", BEST_EFFORT)
    lab.until(lambda: joystick.get_subscription_count() >= 3, "found by robot, policy and supervisor")
    lab.fly()

    def human() -> bool:
        joystick.publish(topics.command_message(MOTORS, np.full(4, 0.61)))
        lab.rest(0.02)
        return bool(np.allclose(lab.heard["executed/command"][1].data, 0.61, atol=1e-6))

    assert lab.until(human, "the motors obey the human") < 1.0
    lab.node.destroy_publisher(joystick)
    lab.until(lambda: not lab.armed(), "disarmed")


def test_nobody_else_releases_a_stop_or_arms(lab: Graph):
    """The attack that worked: press, publish False for those who join later, flood `armed`, activate."""
    assert lab.trigger("emergency_stop").success
    with strangers(lab, 1000.0, "arms", "releases"):
        began, before = time.monotonic(), len(lab.states)
        while time.monotonic() - began < 2.0:
            assert not lab.change(ACTIVATE)
            assert lab.arm().message.startswith("emergency stop")
            assert not {"armed", "flying"} & {*lab.states[before:]}
        assert lab.turning < began
        lab.until(lambda: said(lab, "supervisor", "two publishers on /armed"), "who")
        lab.until(lambda: said(lab, "robot", "/stranger"), "the robot, too")
        assert lab.trigger("release").success  # only this ends it, and yet
        lab.until(lambda: "two publishers on /armed: " in lab.arm().message, "nothing is armed beside another")
        assert "/supervisor" in lab.arm().message and "/stranger" in lab.arm().message
        assert lab.turning < began
    lab.until(lambda: lab.arm().success, "armed, now that it is alone")


NAMED = (
    ("robot", "two publishers on /armed: "),
    ("robot", "two publishers on /command: "),
    ("policy", "two publishers on /armed: "),
    ("policy", "two publishers on /odometry: "),
    ("policy", "two publishers on /battery: "),
    ("policy", "command has several publishers: "),
)


def test_strangers_do_not_drop_a_robot_that_flies(lab: Graph):
    """Commands of any size, states, batteries and orders beside the true ones are ignored, and named."""
    kinds = ("disarms", "commands", "three", "garbage", "lost", "empty", "stopped", "silence")
    for _ in range(3):  # a machine that stands still for a moment ends a flight, too
        lab.hover()
        with strangers(lab, 50.0, *kinds):
            if stays(lab, 3.0):
                lab.until(lambda: all(said(lab, *line) for line in NAMED), "it is told who")
                return
        lab.ready()
    raise AssertionError("a stranger ended three flights")


def stays(lab: Graph, seconds: float) -> bool:
    """Whether it flies on for so long."""
    before, end = len(lab.states), time.monotonic() + seconds

    def left() -> bool:
        return any(state != "flying" and "stranger" not in state for state in lab.states[before:])

    lab.until(lambda: left() or time.monotonic() > end, "time passes")
    return not left()


def test_what_does_not_fit_is_named(lab: Graph):
    """Another type, and a quality that cannot be heard."""
    other = Graph(domain=lab.domain)
    try:
        other.node.create_publisher(Float32MultiArray, "override/command", 1)
        quiet = PublisherEventCallbacks(use_default_callbacks=False)
        other.node.create_publisher(Float64MultiArray, "command", BEST_EFFORT, event_callbacks=quiet)
        kind = "/override/command of /bench is a std_msgs/msg/Float32MultiArray, not a std_msgs/msg/Float64MultiArray"
        lab.until(lambda: said(lab, "robot", kind) and said(lab, "supervisor", kind), "the type")
        quality = "/command of /bench cannot be heard: Best effort publisher and reliable subscription"
        lab.until(lambda: said(lab, "robot", quality), "the quality")
    finally:
        other.close()


def test_a_robot_that_is_not_armed_with_its_supervisor_says_why(lab: Graph):
    publisher = lab.node.create_publisher(Float64MultiArray, "command", 1)
    lab.until(publisher.get_subscription_count, "found")

    def heard() -> bool:
        publisher.publish(topics.command_message(MOTORS, np.zeros(4)))
        lab.rest(0.02)
        return "armed, but the robot says disarmed: somebody commands it already" in lab.says("supervisor")

    for _ in range(25):  # until the robot has found it, too
        assert not heard()
    lab.until(lambda: lab.arm().success, "armed")
    lab.until(heard, "the reason")
    lab.node.destroy_publisher(publisher)


def ask(lab: Graph, do: str, key: str, patience: float = 5.0) -> tuple[bool, str]:
    """As `python -m deploy.ros2.ask`: whether it was done, and the answer."""
    config = Config(do, key, patience=patience)
    return signed(lab.node, config, read_key(key), lambda: lab.executor.spin_once(timeout_sec=0.02))


def test_with_a_key_only_its_owner_arms_and_releases(tmp_path: Path):
    path, other = str(tmp_path / "arming.key"), str(tmp_path / "other.key")
    for name in (path, other):
        subprocess.run([sys.executable, "-m", "deploy.ros2.key", f"out={name}"], cwd=ROOT, check=True)
    key, beats = {"key": path}, []
    with graph(robot=key, supervisor={**GENTLE, **key}, policy=key) as lab:
        lab.node.create_subscription(UInt8MultiArray, "armed_beat", beats.append, 10)
        lab.until(lambda: lab.trigger("robot/reset").success, "there")
        assert not lab.arm().success and "ask do=arm key=FILE" in lab.arm().message
        assert ask(lab, "arm", other, 1.0) == (False, "no supervisor with this key: not signed with our key")
        lab.until(lambda: ask(lab, "arm", path) == (True, "armed"), "armed")
        lab.until(lambda: lab.says("robot") == "armed", "heard")
        heard = list(beats)
        assert ask(lab, "disarm", path) == (True, "disarmed")
        lab.until(lambda: lab.says("robot") == "disarmed", "heard")
        replays = lab.node.create_publisher(UInt8MultiArray, "armed_beat", 10)
        with strangers(lab, 500.0, "arms", "beats"):
            for beat in heard[-20:]:  # a recording of how it was armed
                replays.publish(beat)
                lab.rest(0.01)
            for why in ("/armed_beat of /", "a repetition", "not signed with our key"):
                lab.until(lambda why=why: said(lab, "robot", why), "who is not believed, and why")
            assert lab.says("robot") == "disarmed"
            lab.trigger("emergency_stop")
            assert not lab.trigger("release").success
            assert ask(lab, "arm", path) == (False, "emergency stop")
            assert ask(lab, "release", path) == (True, "released; arm it again")
            words = ("do=arm", f"key={path}")
            process = spawn("deploy.ros2.ask", *words, domain=lab.domain, stdout=subprocess.PIPE)
            lab.until(lambda: lab.says("robot") == "armed", "strangers do not disarm it either")
            assert process.communicate()[0] == "armed\n" and process.returncode == 0
