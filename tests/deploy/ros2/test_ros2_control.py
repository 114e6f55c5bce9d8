"""An arm's standard messages: joints are matched by name, controllers get what they expect."""

import math

import numpy as np
import pytest
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from deploy.ros2 import topics
from deploy.ros2.ros2_control import Joints, command_sources, joint_sources
from sim.spec import Signal
from sim.tasks.arm.pick_place import ArmPickPlace, PickPlaceConfig

JOINT = ArmPickPlace(PickPlaceConfig(control="joint"))
PANDA = Joints("panda")
ARM = [f"panda_joint{k}" for k in range(1, 8)]
FINGERS = ["panda_finger_joint1", "panda_finger_joint2"]
POSE = np.linspace(-1.0, -0.1, 7)


def states(joints=PANDA, inputs=JOINT.policy):
    (source,) = joint_sources(inputs, joints)
    return source


def shuffled(message, seed=0):
    order = np.random.default_rng(seed).permutation(len(message.name))
    fields = {f: [getattr(message, f)[k] for k in order] for f in ("name", "position", "velocity", "effort")}
    return JointState(**fields)


def test_joints_are_matched_by_name_in_any_order():
    source, values = (
        states(),
        {"joint_position": POSE, "joint_velocity": 2.0 * POSE, "gripper_opening": np.array([0.06])},
    )
    message = JointState()
    source.fill(message, values)
    assert list(message.name) == ARM + FINGERS and list(message.position[7:]) == [0.03, 0.03]
    assert all(math.isnan(v) for v in [*message.effort, *message.velocity[7:]])  # nobody measures these
    for seed in range(5):
        read = source.read(shuffled(message, seed))
        assert read.keys() == values.keys()
        for name, value in read.items():
            np.testing.assert_allclose(value, values[name])


def test_what_a_message_leaves_open_and_what_it_must_have():
    source = states(Joints.parse("panda", "a, b,c,d,e,f,g", "jaw"))
    message = JointState(name=["jaw", *"gfedcba"], position=[0.05, *range(7)])
    read = source.read(message)
    assert read["joint_position"].tolist() == [6, 5, 4, 3, 2, 1, 0] and read["gripper_opening"].tolist() == [0.05]
    assert np.isnan(read["joint_velocity"]).all()
    with pytest.raises(topics.TopicError, match="it has no joint 'panda_joint1'; there are: jaw, g"):
        states().read(message)
    message.velocity = [0.0]
    with pytest.raises(topics.TopicError, match="it has 1 numbers of velocity for 8 joints"):
        source.read(message)
    with pytest.raises(topics.TopicError, match="the policy's arm has 7 joints, named are 2: a, b"):
        states(Joints("panda", ("a", "b")))


def test_topics_of_an_arm():
    found = topics.sources(JOINT.policy, joint_sources(JOINT.policy, PANDA))
    assert [s.topic for s in found] == ["joint_states", "hand_pose", "object_pose", "goal"]
    assert [s.topic for s in found if s.paces] == ["joint_states", "hand_pose"]
    assert joint_sources((Signal("position", (3,), "m", "world"),), PANDA) == ()


def test_what_a_benchmark_lacks_or_has_its_own_way():
    inputs = (Signal("hand_position", (3,), "m", "world"), Signal("gripper_opening", (1,), "1"))
    hand, opening = topics.sources(inputs, joint_sources(inputs, PANDA))
    assert (hand.topic, opening.topic) == ("hand_pose", "signals/gripper_opening")
    message = hand.message()
    hand.fill(message, {"hand_position": np.ones(3)})
    read = hand.read(message)
    assert read["hand_position"].tolist() == [1.0, 1.0, 1.0] and np.isnan(read["hand_rotation"]).all()


@pytest.mark.parametrize(("way", "kind"), [("forward", Float64MultiArray), ("trajectory", JointTrajectory)])
def test_commands_as_the_controllers_take_them(way, kind):
    arm, gripper = command_sources(JOINT.commands, PANDA, way, 0.05)
    name = {"forward": "commands", "trajectory": "joint_trajectory"}[way]
    assert [arm.topic, gripper.topic] == [f"arm_controller/{name}", f"gripper_controller/{name}"]
    messages = [arm.message(), gripper.message()]
    assert all(isinstance(message, kind) for message in messages)
    arm.fill(messages[0], {"joint_target": POSE})
    gripper.fill(messages[1], {"gripper_target": np.array([0.08])})
    assert arm.read(messages[0])["joint_target"].tolist() == POSE.tolist()
    assert gripper.read(messages[1])["gripper_target"].tolist() == [0.08]
    if way == "forward":
        assert list(messages[0].data) == POSE.tolist() and list(messages[1].data) == [0.04, 0.04]
        assert not messages[0].layout.dim
        with pytest.raises(topics.TopicError, match="got 2 numbers, not 7 for panda_joint1, "):
            arm.read(messages[1])
    else:
        message = messages[0]
        assert list(message.joint_names) == ARM and message.points[0].time_from_start.nanosec == 50_000_000
        message.joint_names.reverse()
        assert arm.read(message)["joint_target"].tolist() == POSE[::-1].tolist()
        with pytest.raises(topics.TopicError, match="got the joints panda_finger_joint1, panda_finger_joint2, not "):
            arm.read(messages[1])
        message.points = []
        with pytest.raises(topics.TopicError, match="a trajectory here has one point, with a position for every joint"):
            arm.read(message)


def test_a_velocity_of_the_hand_is_a_twist_for_servo():
    hand, _ = command_sources(ArmPickPlace().commands, PANDA, "forward", 0.05)
    message = hand.message()
    hand.fill(message, {"hand_velocity": np.array([0.1, -0.2, 0.3])})
    assert topics.type_name(hand.message) == "geometry_msgs/msg/TwistStamped" and hand.frame == "world"
    assert message.twist.linear.y == -0.2 and message.twist.angular.x == 0.0
    assert hand.read(message)["hand_velocity"].tolist() == [0.1, -0.2, 0.3]


def test_other_commands_are_labelled_arrays_and_other_ways_are_refused():
    one = (Signal("action", (4,), "1", "", -1.0, 1.0),)
    (source,) = command_sources(one, PANDA, "forward", 0.05)
    assert source.topic == "command"
    with pytest.raises(topics.TopicError, match="commands 'servo' is not one of forward, trajectory"):
        command_sources(one, PANDA, "servo", 0.05)


def test_pictures():
    signal = Signal("wrist_camera", (2, 3, 3), "1", "", 0.0, 255.0, dtype="uint8")
    (source,) = topics.sources((signal,))
    picture = np.arange(18).reshape(2, 3, 3)
    message = Image()
    source.fill(message, {"wrist_camera": picture})
    assert source.topic == "wrist_camera/image_raw" and message.step == 9
    np.testing.assert_array_equal(source.read(message)["wrist_camera"], picture)
    padded = np.concatenate([picture.reshape(2, 9), np.zeros((2, 7), int)], axis=1)  # rows may be longer
    bgr = Image(height=2, width=3, step=16, encoding="bgr8", data=padded.astype(np.uint8).tobytes())
    np.testing.assert_array_equal(source.read(bgr)["wrist_camera"], picture[:, :, ::-1])
    message.width = 4
    with pytest.raises(topics.TopicError, match="it has 4 x 2 pixels, which is another shape than the policy's 3 x 2"):
        source.read(message)
