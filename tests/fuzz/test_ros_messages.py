"""Random messages of right and wrong sizes, labels, frames and numbers at everything that reads one; FUZZ: how many."""

import os
import random
import warnings
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from deploy.ros2 import topics
from deploy.ros2.ros2_control import FORWARD, TRAJECTORY, Joints, command_sources, joint_sources
from sim.spec import Signal

with warnings.catch_warnings():  # lark, which the message packages load, imports sre_parse
    warnings.simplefilter("ignore", DeprecationWarning)
    import rosidl_generator_py  # noqa: F401

MANY = int(os.environ.get("FUZZ", "300"))  # messages per reader
TEXTS = (
    "",
    "world",
    "odom",
    "map_ned",
    "base_link_frd",
    "motor_command",
    "joint_target",
    "\x1b[2J",
    "a" * 3000,
    "\u202e",
)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e30, -1e308, 5e-324, float("nan"), float("inf"), -float("inf"))
ENCODINGS = ("rgb8", "bgr8", "mono8", "", "rgba8\n")

ARM = Joints("panda")
INPUTS = (
    Signal("joint_position", (7,), "rad"),
    Signal("joint_velocity", (7,), "rad/s"),
    Signal("gripper_opening", (1,), "m"),
)
OUTPUTS = (
    Signal("joint_target", (7,), "rad", low=-3.0, high=3.0),
    Signal("gripper_target", (1,), "m", low=0.0, high=0.08),
    Signal("hand_velocity", (3,), "m/s"),
)
READERS = {
    **{s.topic: s for s in (topics.ODOMETRY, topics.IMU, topics.TARGET, topics.GOAL, topics.HAND, topics.OBJECT)},
    "battery": topics.BATTERY,
    "array": topics.array_source(Signal("preview", (2, 3))),
    "command": topics.array_source(Signal("motor_command", (4,)), "command", Float64MultiArray),
    "picture": topics.image_source(Signal("camera", (4, 6, 3), low=0.0, high=255.0, dtype="uint8")),
    "joint_states": joint_sources(INPUTS, ARM)[0],
    **{f"{way} {s.topic}": s for way in (FORWARD, TRAJECTORY) for s in command_sources(OUTPUTS, ARM, way, 0.02)},
}


def number(rng: random.Random) -> float:
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.uniform(-10.0, 10.0)


def numbers(rng: random.Random, usual: int) -> list[float]:
    return [number(rng) for _ in range(rng.choice((usual, usual, 0, 1, usual - 1, usual + 1, 40)))]


def scatter(rng: random.Random, message: Any) -> None:
    """Numbers and texts into every field that holds one, at any depth."""
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if kind in ("float", "double"):
            small = abs(made := number(rng)) < 3e38 or made != made
            setattr(message, name, made if kind == "double" or small else 0.0)
        elif kind == "string":
            setattr(message, name, rng.choice(TEXTS))
        elif hasattr(value, "get_fields_and_field_types"):
            scatter(rng, value)


def of_arm(rng: random.Random) -> list[str]:
    names = [*ARM.of_arm(7), *ARM.of_gripper()]
    rng.shuffle(names)
    return names[: rng.choice((9, 9, 9, 0, 3))] + ["panda_joint1"] * rng.randrange(2)


def message_for(rng: random.Random, kind: Any) -> Any:
    """One message, as a careless or hostile node would fill it."""
    message = kind()
    scatter(rng, message)
    if kind in (Float32MultiArray, Float64MultiArray):
        dims = [
            MultiArrayDimension(label=rng.choice((*TEXTS, "preview")), size=rng.randrange(9))
            for _ in range(rng.randrange(3))
        ]
        message.layout.dim = dims
        values = numbers(rng, rng.choice((4, 6, 7, 2, 1)))
        message.data = values if kind is Float64MultiArray else [v if abs(v) < 3e38 or v != v else 0.0 for v in values]
    elif kind is Image:
        message.height, message.width = rng.choice((4, 0, 6, 2**31)), rng.choice((6, 0, 4, 2**32 - 1))
        message.encoding, message.step = rng.choice(ENCODINGS), rng.choice((18, 0, 2**32 - 1))
        message.data = rng.randbytes(rng.choice((72, 0, 71, 73, 18, 144)))
    elif kind is JointState:
        message.name = of_arm(rng)
        message.position, message.velocity = numbers(rng, len(message.name)), numbers(rng, len(message.name))
    elif kind is JointTrajectory:
        message.joint_names = of_arm(rng)[: rng.choice((2, 7, 9))]
        points = [
            JointTrajectoryPoint(positions=numbers(rng, len(message.joint_names))) for _ in range(rng.randrange(3))
        ]
        message.points = points
    return message


def read(source: topics.Source, message: Any) -> bool:
    """Whether it is taken: then every value has its signal's shape. Any error but a TopicError is a finding."""
    try:
        with np.errstate(all="ignore"):
            values = source.read(message)
    except topics.TopicError as error:
        assert "\n" not in str(error) and "\x1b" not in str(error) and len(str(error)) < 2000
        return False
    shapes = {s.name: s.shape for s in source.signals}
    assert all(np.shape(value) == shapes[name] for name, value in values.items())
    return True


@pytest.mark.parametrize("name", READERS)
def test_whatever_comes_is_read_or_refused(name: str):
    rng, source = random.Random(name), READERS[name]
    for _ in range(MANY):
        read(source, message_for(rng, source.message))


@pytest.mark.parametrize("name", READERS)
def test_bytes_that_were_changed_on_their_way(name: str):
    rng, source = random.Random(name), READERS[name]
    for _ in range(MANY // 3):
        data = bytearray(serialize_message(message_for(rng, source.message)))
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(4, len(data))] = rng.randrange(256)
        try:
            message = deserialize_message(bytes(data), source.message)
        except (RuntimeError, ValueError, MemoryError):
            continue
        read(source, message)
