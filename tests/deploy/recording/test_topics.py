"""The standard topics of a flight log are what ROS 2's tools expect: the same for rosbags and for ROS 2's own types."""

import importlib

import numpy as np
import pytest
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from deploy.drivers import Reading
from deploy.drivers.simulated import Simulated
from deploy.guard import REASONS, Envelope, Guard
from deploy.loop import run
from deploy.recording import cdr, flight_log
from deploy.recording.definitions import DEFINITIONS
from deploy.recording.flight_log import Layout
from deploy.recording.recorder import Recorder
from deploy.recording.topics import Topics
from sim.conditions import Conditions
from sim.spec import Signal
from sim.tasks import make
from tests.deploy.sample_policy import CALM, exported, linear_hover

STANDARD = {
    "/tf": "tf2_msgs/msg/TFMessage",
    "/robot/odometry": "nav_msgs/msg/Odometry",
    "/robot/target": "geometry_msgs/msg/PoseStamped",
    "/robot/sent/motor_command": "std_msgs/msg/Float64MultiArray",
    "/diagnostics": "diagnostic_msgs/msg/DiagnosticArray",
}


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    """The log of a flight that goes wrong, its messages by topic: (stamp, bytes, what rosbags makes of them)."""
    folder = tmp_path_factory.mktemp("log")
    policy = exported(folder / "p.onnx", linear_hover())
    driver = Simulated(make("quad_hover", **CALM), conditions=Conditions(vary=True))
    guard = Guard(policy.inputs, policy.outputs, Envelope(hold_steps=3))
    recorder = Recorder(str(folder / "f.mcap"), policy, driver, guard, "onnxruntime")
    recorder.event("armed", "by hand", "the supervisor")
    read = driver.read
    driver.read = lambda: Reading({}, {}) if driver._step >= 90 else read()
    run(policy, driver, guard, 120, log=recorder)
    assert recorder.close() == ""
    found = {}
    with AnyReader([folder / "f.mcap"]) as reader:
        for connection, stamp, raw in reader.messages():
            message = reader.deserialize(raw, connection.msgtype)
            found.setdefault(connection.topic, []).append((stamp, raw, message))
        types = {connection.topic: connection.msgtype for connection in reader.connections}
    return flight_log.read(str(folder / "f.mcap")), types, found


def test_the_standard_topics_say_what_the_steps_say(bag):
    flight, types, found = bag
    assert {topic: types.get(topic) for topic in STANDARD} == STANDARD
    stamps = flight.stamp.tolist()
    rotation = flight.values("signals.rotation")[:, 0].reshape(-1, 3, 3)
    for stamp, _, message in found["/robot/odometry"]:
        k = stamps.index(stamp)
        assert stamp == message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        assert (message.header.frame_id, message.child_frame_id) == ("world", "robot")
        where, twist = message.pose.pose.position, message.twist.twist
        np.testing.assert_array_equal([where.x, where.y, where.z], flight.values("signals.position")[k, 0])
        velocity = flight.values("signals.linear_velocity")[k, 0]
        np.testing.assert_allclose(
            [twist.linear.x, twist.linear.y, twist.linear.z], velocity @ rotation[k], rtol=1e-5, atol=1e-6
        )
        rate = flight.values("signals.angular_velocity")[k, 0]
        np.testing.assert_array_equal([twist.angular.x, twist.angular.y, twist.angular.z], rate)
    assert [len(found[topic]) for topic in ("/tf", "/robot/odometry")] == [45, 90]  # of 120 steps, until it saw nothing
    for stamp, _, message in found["/robot/sent/motor_command"]:
        k = stamps.index(stamp)
        np.testing.assert_array_equal(message.data, flight.values("sent.motor_command")[k, 0])
        assert [(d.size, d.stride) for d in message.layout.dim] == [(4, 4)]
    assert len(found["/robot/target"]) < 10
    target = found["/robot/target"][0][2].pose.position
    np.testing.assert_array_equal([target.x, target.y, target.z], flight.values("signals.target_position")[0, 0])


def test_the_diagnostics_tell_the_story(bag):
    _, _, found = bag
    told = [(s.name, s.level, s.message) for _, _, message in found["/diagnostics"] for s in message.status]
    assert told == [
        ("flight: armed", 0, "by hand"),
        ("robot: guard", 0, "pass"),
        ("robot: guard", 1, "hold: stale signal"),
        ("robot: guard", 2, "safe: stale signal"),
        ("flight: end", 0, "stale signal"),
    ]
    (value,) = found["/diagnostics"][0][2].status[0].values
    assert (value.key, value.value) == ("who", "the supervisor")


def same(ours, theirs, names):
    """Field by field, whatever kind of class a message is of."""
    for name in names:
        one, other = getattr(ours, name), getattr(theirs, name)
        if isinstance(other, bytes):  # as rclpy has the type `byte`
            assert one == other[0]
        elif hasattr(other, "get_fields_and_field_types"):
            same(one, other, other.get_fields_and_field_types())
        elif isinstance(other, list) and other and hasattr(other[0], "get_fields_and_field_types"):
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                same(a, b, b.get_fields_and_field_types())
        elif isinstance(other, str | int | float):
            assert one == other
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")
def test_ros_itself_reads_the_same(bag):
    serialization = importlib.import_module("rclpy.serialization")
    _, _, found = bag
    for topic, kind in STANDARD.items():
        package, _, name = kind.split("/")
        if package == "tf2_msgs":  # no wheel has it
            continue
        theirs = getattr(importlib.import_module(f"{package}.msg"), name)
        for _, raw, message in found[topic]:
            known = serialization.deserialize_message(bytes(raw), theirs)
            same(message, known, known.get_fields_and_field_types())
            assert len(serialization.serialize_message(known)) == len(raw)


@pytest.mark.parametrize("name", sorted(name for name in DEFINITIONS if not name.startswith("sim2metal")))
def test_the_definitions_are_those_of_ros(name):
    package, _, kind = name.partition("/")
    store = get_typestore(Stores.ROS2_JAZZY)
    full = f"{package}/msg/{kind}"
    from rosbags.typesys import get_types_from_msg

    ours = get_types_from_msg(cdr.definition(name, DEFINITIONS), full)
    assert ours[full][1] == store.fielddefs[full][1]


class Written:
    """A writer of MCAP that keeps what is registered."""

    def __init__(self):
        self.schemas, self.channels, self.messages = [], [], []

    def register_schema(self, name, encoding, data):
        self.schemas.append(name)
        return len(self.schemas)

    def register_channel(self, topic, encoding, schema):
        self.channels.append((topic, self.schemas[schema - 1]))
        return len(self.channels)

    def add(self, channel, stamp, message):
        topic, kind = self.channels[channel - 1]
        store = get_typestore(Stores.ROS2_JAZZY)
        self.messages.append((topic, stamp, store.deserialize_cdr(message, kind)))


def test_an_arm_has_the_states_of_its_joints():
    signals = (Signal("joint_position", (7,), "rad"), Signal("joint_velocity", (7,), "rad/s"), Signal("box", (3,)))
    commands = (Signal("joint_target", (7,), "rad", low=-3.0, high=3.0), Signal("grip", (2, 1), low=0.0, high=1.0))
    layout, out = Layout(signals, {}, commands), Written()
    about = {"rate_hz": 500.0, "robot": "panda", "reasons": REASONS}
    topics = Topics(out, out.add, about, ["robot"], signals, commands)
    rng = np.random.default_rng(0)
    for k in range(30):
        record = np.zeros(1, layout.dtype)
        for name in ("signals.joint_position", "signals.joint_velocity", "sent.joint_target", "sent.grip"):
            record[name] = rng.normal(size=record[name].shape)
        topics.step(record, k, 10**18 + k)
    assert {topic for topic, _ in out.channels} == {
        "/robot/joint_states",
        "/robot/sent/joint_target",
        "/robot/sent/grip",
        "/diagnostics",
    }
    states = [(stamp, message) for topic, stamp, message in out.messages if topic == "/robot/joint_states"]
    assert [stamp - 10**18 for stamp, _ in states] == [0, 10, 20]  # at most 50 Hz
    assert states[0][1].name == [f"panda_joint{k}" for k in range(1, 8)]
    assert len(states[0][1].position) == len(states[0][1].velocity) == 7 and len(states[0][1].effort) == 0
    grip = next(message for topic, _, message in out.messages if topic == "/robot/sent/grip")
    assert [(d.size, d.stride) for d in grip.layout.dim] == [(2, 2), (1, 1)]


def test_text_goes_through_the_encoder_whatever_it_is():
    encode = cdr.encoder("std_msgs/Header", DEFINITIONS)
    store = get_typestore(Stores.ROS2_JAZZY)
    for text in ("", "ä€", "a\0b", "\ud800", "x" * 1000):
        read = store.deserialize_cdr(encode({"frame_id": text}), "std_msgs/msg/Header")
        assert read.frame_id == text.replace("\0", "?").replace("\ud800", "?")
    assert encode({}) == cdr.HEADER + bytes(8) + b"\x01\0\0\0\0"
    with pytest.raises(ValueError, match="needs 36 numbers"):
        cdr.encoder("nav_msgs/Odometry", DEFINITIONS)({"pose": {"covariance": [1.0]}})
