"""Hands on ROS 2: a real publisher on cmd_vel, stamped or not, the gripper and verdicts."""

import math
import time

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped
from rclpy.node import Node
from std_msgs.msg import Bool, String

from deploy.teleop import ros2
from deploy.teleop.devices import TeleopError
from deploy.teleop.ros2 import Topics
from tests.deploy.ros2.bench import PATIENCE, Graph

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def graph():
    made = Graph()
    yield made
    made.close()


class Human:
    """A node that publishes, and the device that listens."""

    def __init__(self, graph, namespace, kind):
        self.node = Node("human", context=graph.context, namespace=namespace)
        self.listener = Node("listener", context=graph.context, namespace=namespace)
        self.velocity = self.node.create_publisher(kind, "cmd_vel", 1)
        self.gripper = self.node.create_publisher(Bool, "gripper_closed", 1)
        self.verdict = self.node.create_publisher(String, "verdict", 10)
        self.hands = Topics(node=self.listener)
        self.kind = kind

    def move(self, x, y, z, frame=""):
        message = self.kind()
        twist = message
        if self.kind is TwistStamped:
            message.header.frame_id, twist = frame, message.twist
        twist.linear.x, twist.linear.y, twist.linear.z = x, y, z
        self.velocity.publish(message)

    def until(self, says, publish):
        """What is said once it fits; published again and again, as teleoperation nodes do."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            publish()
            time.sleep(0.02)
            said = self.hands.read(0.5)
            if says(said):
                return said
        raise AssertionError("nothing came")

    def close(self):
        self.hands.close()
        self.node.destroy_node()
        self.listener.destroy_node()


@pytest.fixture(params=[Twist, TwistStamped])
def human(graph, request):
    made = Human(graph, f"/{request.param.__name__.lower()}", request.param)
    yield made
    made.close()


def test_a_human_steers_over_topics(human):
    said = human.hands.read(0.5)
    assert not said.active and not said.velocity.any() and not said.closed
    said = human.until(lambda s: s.active, lambda: human.move(0.1, -0.2, 3.0))
    assert np.allclose(said.velocity, (0.1, -0.2, 0.5))  # m/s, at most full speed
    time.sleep(1.2 * ros2.STALE)
    said = human.hands.read(0.5)
    assert not said.active and not said.velocity.any()  # nobody says anything any more
    said = human.until(lambda s: s.closed, lambda: human.gripper.publish(Bool(data=True)))
    assert said.active
    human.hands.begin()
    assert not human.hands.read(0.5).closed
    for verdict in ("redo", "success"):
        human.verdict.publish(String(data=verdict))
        human.until(lambda s, v=verdict: s.verdict == v, lambda: None)
        assert not human.hands.read(0.5).verdict


def test_what_cannot_be_followed_is_refused(human):
    with pytest.raises(TeleopError, match="verdict: 'great' is not one of keep, success, failure, redo, quit"):
        human.until(lambda s: False, lambda: human.verdict.publish(String(data="great")))
    with pytest.raises(TeleopError, match="cmd_vel holds a velocity that is not finite"):
        human.until(lambda s: False, lambda: human.move(math.nan, 0.0, 0.0))
    if human.kind is TwistStamped:
        with pytest.raises(TeleopError, match="cmd_vel is in the frame 'tool0'; it must be in 'world'"):
            human.until(lambda s: False, lambda: human.move(0.1, 0.0, 0.0, "tool0"))


def test_another_type_is_named(graph):
    human = Human(graph, "/other", Twist)
    human.node.destroy_publisher(human.velocity)
    wrong = human.node.create_publisher(PoseStamped, "cmd_vel", 1)
    with pytest.raises(TeleopError, match="/other/cmd_vel is a geometry_msgs/msg/PoseStamped, not one of geometry_msg"):
        human.until(lambda s: False, lambda: wrong.publish(PoseStamped()))
    human.close()


def test_a_namespace_that_is_none_is_refused():
    with pytest.raises(TeleopError, match="ros2:9 lives: "):
        Topics("9 lives")
