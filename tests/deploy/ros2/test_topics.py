"""Signals to standard messages and back, a policy's contract against topics, and a robot's interlock: no processes."""

import itertools
import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nav_msgs.msg import Odometry
from std_msgs.msg import Float64MultiArray

from deploy import PolicyFile
from deploy.drivers.ros2 import Ros2
from deploy.ros2 import topics
from deploy.ros2.arming.interlock import ARMED, DISARMED, FLYING, LADDER, OVERRIDE, STOPPED, Interlock
from deploy.ros2.node.frames import Frames
from deploy.ros2.node.subscriptions import NAMES, Owner
from deploy.ros2.simulation.fault_injection import DELAY, JUMP, KINDS, Fault
from deploy.ros2.simulation.robot import World
from sim.spec import Signal
from sim.tasks import make

finite = st.floats(-100.0, 100.0)
vectors = st.tuples(finite, finite, finite).map(np.array)
unit = st.tuples(*[st.floats(-1.0, 1.0)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1)


def rotation(q) -> np.ndarray:
    """Of a quaternion (w, x, y, z), by the textbook."""
    w, x, y, z = np.array(q) / np.linalg.norm(q)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return (np.eye(3) + 2 * w * cross + 2 * cross @ cross).reshape(9)


@given(unit, vectors, vectors, vectors)
def test_odometry_and_back(q, position, velocity, rate):
    values = {
        "position": position,
        "rotation": rotation(q),
        "linear_velocity": velocity,
        "angular_velocity": rate,
    }
    message = Odometry()
    message.header.frame_id = topics.WORLD
    topics.ODOMETRY.fill(message, values)
    found = message.pose.pose.orientation
    sign = np.sign(np.dot([found.w, found.x, found.y, found.z], q))
    np.testing.assert_allclose(
        sign * np.array([found.w, found.x, found.y, found.z]), np.array(q) / np.linalg.norm(q), atol=1e-9
    )
    turn = rotation(q).reshape(3, 3)  # of a robot on wheels there is the same in other words
    values |= {"velocity": (turn.T @ velocity)[:2], "turning": rate[2:]}
    values["odometry"] = np.array([*position[:2], turn[0, 0], turn[1, 0]])
    for name, value in topics.ODOMETRY.read(message).items():
        np.testing.assert_allclose(value, values[name], atol=1e-9)


@given(finite, finite, st.floats(-3.1, 3.1), vectors)
def test_odometry_of_a_robot_on_wheels_and_back(x, y, heading, twist):
    values = {"odometry": np.array([x, y, math.cos(heading), math.sin(heading)])}
    values |= {"velocity": twist[:2], "turning": twist[2:]}
    message = Odometry()
    topics.ODOMETRY.fill(message, values)
    assert (message.header.frame_id, message.child_frame_id) == ("odom", "base_link")  # as REP 105 has it
    read = topics.ODOMETRY.read(message)
    for name, value in values.items():
        np.testing.assert_allclose(read[name], value, atol=1e-9)
    np.testing.assert_allclose(read["position"], [x, y, 0.0])
    assert np.linalg.norm(read["linear_velocity"]) == pytest.approx(np.linalg.norm(twist[:2]))


def test_the_twist_is_in_the_child_frame():
    message = Odometry(child_frame_id="base_link")
    message.header.frame_id = "odom"
    message.pose.pose.orientation.z = message.pose.pose.orientation.w = math.sqrt(0.5)  # it looks along y
    message.twist.twist.linear.x = 2.0  # forward
    message.twist.twist.angular.x = 1.0
    np.testing.assert_allclose(topics.ODOMETRY.read(message)["linear_velocity"], [0.0, 2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(topics.ODOMETRY.read(message)["angular_velocity"], [1.0, 0.0, 0.0], atol=1e-12)
    message.child_frame_id = "odom"  # a twist in the world
    np.testing.assert_allclose(topics.ODOMETRY.read(message)["linear_velocity"], [2.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(topics.ODOMETRY.read(message)["angular_velocity"], [0.0, -1.0, 0.0], atol=1e-12)


def test_the_same_pose_for_tf():
    message = Odometry(child_frame_id="one/base_link")
    message.header.frame_id = topics.WORLD
    values = {name: np.arange(1.0, 4.0) for name in shapes(topics.ODOMETRY)} | {"rotation": np.eye(3).reshape(9)}
    topics.ODOMETRY.fill(message, values)
    made = topics.transform(message)
    assert (made.header.frame_id, made.child_frame_id) == ("world", "base_link")
    assert (made.transform.translation.z, made.transform.rotation.w) == (3.0, 1.0)


def test_what_cannot_be_an_odometry_of_ours():
    message = Odometry(child_frame_id="base_link_frd")
    message.header.frame_id = "map_ned"
    with pytest.raises(topics.TopicError, match="have z up"):
        topics.ODOMETRY.read(message)
    empty = Odometry(child_frame_id="base_link")
    empty.pose.pose.orientation.w = 0.0  # nobody filled it in
    assert np.isnan(topics.ODOMETRY.read(empty)["rotation"]).all()
    with np.errstate(invalid="ignore"):
        topics.ODOMETRY.fill(message, {n: np.full(k, np.nan) for n, k in shapes(topics.ODOMETRY).items()})
    assert math.isnan(message.pose.pose.orientation.w)


@pytest.mark.parametrize("source", [topics.TARGET, topics.GOAL, topics.HAND, topics.OBJECT], ids=lambda s: s.topic)
def test_a_place_in_another_kind_of_frame_is_no_place(source):
    message = source.message()
    own = ("base_link", "/base_link", "one/base_link", "base_footprint", "body")
    stands = source is not topics.TARGET  # an arm, whose base_link is where its world begins
    for frame in ("", "world", "map", "odom", "one/map", "antibody", *(own if stands else ())):
        message.header.frame_id = frame
        assert source.read(message)[source.signals[0].name].shape == (3,)
    for frame in () if stands else own:
        message.header.frame_id = frame
        with pytest.raises(topics.TopicError, match="the robot's own frame; give it in 'world'"):
            source.read(message)
    for frame in ("map_ned", "world_ned", "base_link_frd"):
        message.header.frame_id = frame
        with pytest.raises(topics.TopicError, match="have z up"):
            source.read(message)


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def error(self, text: str, **how: float) -> None:
        self.said.append(text)


def test_a_target_in_another_frame_than_odometry_is_no_target():
    log, values = Lines(), {}
    frames = Frames(log)

    def come(source: topics.Source, frame: str) -> None:
        message = source.message()
        message.header.frame_id = frame
        values[source.topic] = source.read(message)
        frames.check(source, message, values)

    come(topics.TARGET, "map")  # before anybody knows where the robot is
    come(topics.ODOMETRY, "odom")
    assert set(values) == {"odometry"}
    assert log.said == ["target is in 'map', odometry in 'odom': give them in one frame"]
    assert frames.unread("target", values) == "is in 'map', odometry in 'odom': give them in one frame"
    for frame in ("", "/odom", "odom"):
        come(topics.TARGET, frame)
        assert set(values) == {"odometry", "target"} and not frames.unread("target", values)
    come(topics.IMU, "imu_link")  # no place
    come(topics.ODOMETRY, "odom")
    assert set(values) == {"imu", "odometry", "target"} and len(log.said) == 1
    frames.held = True
    come(topics.ODOMETRY, "map")  # in flight, the robot seems to be somewhere else
    assert "odometry" not in values and "odometry is in 'map', odometry in 'odom'" in log.said[-1]
    frames.held = False
    come(topics.ODOMETRY, "map")
    assert set(values) == {"imu", "odometry"}  # and the target has to be told anew


def test_an_arm_s_places_are_in_the_frame_of_its_hand():
    log, values = Lines(), {}
    frames = Frames(log)
    for source, frame in ((topics.HAND, "base_link"), (topics.OBJECT, "camera_color_optical_frame")):
        message = source.message()
        message.header.frame_id = frame
        values[source.topic] = source.read(message)
        frames.check(source, message, values)
    assert set(values) == {"hand_pose"} and "object_pose is in 'camera_color_optical_frame'" in log.said[0]


def test_configuring_names_both_frames():
    values: dict[str, topics.Values] = {}
    frames = Frames(Lines())
    for source, frame in ((topics.ODOMETRY, "odom"), (topics.TARGET, "map")):
        message = source.message()
        message.header.frame_id = frame
        values[source.topic] = source.read(message)
        frames.check(source, message, values)
    inbox = SimpleNamespace(topic="/target", message=message)
    driver = SimpleNamespace(
        _inboxes={"target": inbox}, _frames=frames, values=values, _boxes=(), node=None, rate_hz=100.0, _inputs=()
    )
    said = Ros2._trouble(cast(Ros2, driver), topics.TARGET, {})
    assert said == "/target is in 'map', odometry in 'odom': give them in one frame"


@pytest.mark.parametrize("held", [False, True])
def test_without_a_place_of_its_own_the_places_are_compared_with_one_another(held: bool):
    log, values = Lines(), {}
    frames = Frames(log)
    frames.held = held

    def come(source: topics.Source, frame: str) -> set[str]:
        message = source.message()
        message.header.frame_id = frame
        values[source.topic] = source.read(message)
        frames.check(source, message, values)
        return set(values)

    assert come(topics.GOAL, "map") == {"goal"} == come(topics.OBJECT, "camera_optical_frame")
    assert frames.unread("object_pose", values) == (
        "is in 'camera_optical_frame', goal in 'map': give them in one frame"
    )
    assert come(topics.OBJECT, "map") == {"goal", "object_pose"} == come(topics.OBJECT, "")
    come(topics.OBJECT, "map")
    if held:  # what was there first holds
        assert come(topics.GOAL, "odom") == {"object_pose"} == come(topics.HAND, "base_link")
    else:
        assert come(topics.GOAL, "odom") == {"goal"} and come(topics.OBJECT, "odom") == {"goal", "object_pose"}
        assert come(topics.HAND, "base_link") == {"hand_pose"} and "hand_pose in 'base_link'" in log.said[-1]
    values.clear()
    frames.forget("goal")
    assert frames.unread("goal", values) == "carries something that cannot be read"


def test_an_acceleration_whose_z_axis_points_down_is_refused():
    message = topics.IMU.message()
    message.header.frame_id = "imu_link"
    topics.IMU.read(message)
    message.header.frame_id = "base_link_frd"
    with pytest.raises(topics.TopicError, match="imu is in 'base_link_frd'; frames here have z up"):
        topics.IMU.read(message)


def shapes(source: topics.Source) -> dict[str, tuple[int, ...]]:
    return {s.name: s.shape for s in source.signals}


@pytest.mark.parametrize("source", dict.fromkeys(topics.STANDARD.values()), ids=lambda s: s.topic)
def test_every_standard_message_carries_its_signals(source: topics.Source):
    values = {name: np.linspace(0.1, 0.9, math.prod(shape)).reshape(shape) for name, shape in shapes(source).items()}
    turned = np.array([0.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    values |= dict.fromkeys(("rotation", "hand_rotation", "object_rotation"), turned) | {"angular_velocity": np.ones(3)}
    message = source.message()
    if source is topics.ODOMETRY:
        values |= {"velocity": (turned.reshape(3, 3).T @ values["linear_velocity"])[:2], "turning": np.ones(1)}
        values["odometry"] = np.array([*values["position"][:2], 0.0, 1.0])
    source.fill(message, values)
    read = source.read(message)
    assert read.keys() == shapes(source).keys()
    for name, value in read.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-6)


def test_topics_of_a_policy():
    found = topics.sources(PolicyFile.load("quad_any").inputs)
    assert [s.topic for s in found] == ["odometry", "target", "signals/target_velocity"]
    assert topics.type_name(found[0].message) == "nav_msgs/msg/Odometry"


@pytest.mark.parametrize(
    ("signal", "complaint"),
    [
        (Signal("position", (3,), "cm", "world"), "unit is 'cm' in the policy, 'm' in nav_msgs/msg/Odometry"),
        (Signal("linear_velocity", (3,), "m/s", "body"), "frame is 'body' in the policy, 'world' in nav_msgs"),
        (Signal("rotation", (4,), "1", "body->world"), r"shape is \(4,\) in the policy, \(9,\) in nav_msgs"),
    ],
)
def test_a_contract_that_no_topic_fulfils(signal: Signal, complaint: str):
    with pytest.raises(topics.TopicError, match=complaint):
        topics.sources((signal,))


def test_arrays_say_what_they_are():
    signal = Signal("preview", (2, 3), "m", "world")
    source = topics.array_source(signal)
    message, values = source.message(), np.arange(6.0).reshape(2, 3)
    source.fill(message, {"preview": values})
    np.testing.assert_array_equal(source.read(message)["preview"], values)
    message.layout.dim[0].label = "something"
    with pytest.raises(topics.TopicError, match="6 numbers labelled 'something', not 6 labelled 'preview'"):
        source.read(message)
    with pytest.raises(topics.TopicError, match="0 numbers labelled ''"):
        topics.from_array(Float64MultiArray(), signal)
    two = (Signal("left", (1,)), Signal("right", (1,)))
    assert topics.command_topic(two, two[1]) == "command/right" and topics.command_topic(two[:1], two[0]) == "command"


SAFE, TURN = np.zeros(4), np.full(4, 0.5)


def flying() -> Interlock:
    """In the air at t = 1 s."""
    lock = Interlock(SAFE, hold_s=0.1, silence_s=0.25)
    assert lock.motors(0.9) is SAFE and lock.state == DISARMED
    lock.arm(1.0, True)
    lock.motors(1.0)
    assert lock.state == ARMED
    lock.command(1.0, TURN)
    assert lock.motors(1.0) is TURN and lock.state == FLYING
    return lock


def test_commands_are_held_for_a_while_then_the_motors_stop():
    lock = flying()
    assert lock.motors(1.09) is TURN
    assert lock.motors(1.11) is SAFE and lock.reason == "commands lost"
    lock.arm(1.2, True)
    lock.command(1.2, TURN)
    assert lock.motors(1.2) is SAFE  # it does not start again by itself
    lock.arm(1.25, False)
    lock.arm(1.25, True)
    assert lock.motors(1.25) is SAFE and lock.state == DISARMED  # not while somebody commands
    lock.motors(1.35)
    lock.command(1.36, TURN)
    assert lock.motors(1.36) is TURN


@pytest.mark.parametrize("way", ["emergency", "disarmed", "silence"])
def test_what_stops_the_motors(way: str):
    lock = flying()
    lock.emergency = way == "emergency"
    if way == "disarmed":
        lock.arm(1.05, False)
    now = 1.3 if way == "silence" else 1.06
    lock.command(now, TURN)
    assert lock.motors(now) is SAFE and lock.state == STOPPED
    lock.arm(now, False)  # told to disarm
    lock.emergency = False
    lock.arm(now + 0.2, True)
    lock.motors(now + 0.2)
    assert lock.state == ARMED


def test_a_human_goes_first_and_leaves_it_stopped():
    lock, hand = flying(), np.full(4, 0.1)
    lock.override(1.05, hand)
    assert lock.motors(1.06) is hand and lock.state == OVERRIDE
    lock.command(1.14, TURN)
    assert lock.motors(1.2) is SAFE and lock.reason == "override ended"
    lock.emergency = True
    lock.override(1.21, hand)
    assert lock.motors(1.21) is SAFE  # but not before the emergency stop


@pytest.mark.parametrize(
    ("trouble", "rungs"),
    [
        ("commands lost", ("holding", "landing", "stopped")),
        ("arming lost", ("holding", "landing", "stopped")),
        ("override ended", ("holding", "landing", "stopped")),
        ("disarmed", ("landing", "stopped")),
        ("emergency stop", ("stopped",)),
    ],
)
def test_in_the_air_it_goes_down_the_ladder(trouble: str, rungs: tuple[str, ...]):
    """A quad_any flight of two seconds on 500 Hz physics, and then the trouble: it lands instead of falling."""
    place, policy = World(make("quad_hover", robot="crazyflie"), "flight", 500.0, 0), PolicyFile.load("quad_any")
    lock, seen = Interlock(place.safe(), 0.1, 0.25, place.pilot), [("disarmed", np.zeros(4))]
    lock.arm(0.0, True)
    lock.motors(0.0)
    policy.reset(1)
    for k in range(500 * 9):
        now, ahead = k / 500, k < 1000
        if ahead or trouble not in ("arming lost", "disarmed"):
            lock.arm(now, True)
        elif k == 1000 and trouble == "disarmed":
            lock.arm(now, False)
        lock.emergency = trouble == "emergency stop" and not ahead
        if k % 5 == 0 and (ahead or trouble != "commands lost"):
            told = policy.step({s.name: place.read()[s.name][None] for s in policy.inputs})["motor_command"][0]
            if trouble != "override ended" or k < 500:
                lock.command(now, told)
            elif ahead:
                lock.override(now, told)
        motors = lock.motors(now)
        place.step(motors, True)
        position, velocity, turn = (place.engine.read(n)[0] for n in ("position", "linear_velocity", "rotation"))
        if not ahead:
            if lock.state != seen[-1][0]:
                seen.append((lock.state, np.array([position[2], velocity[2], turn[8]])))
            if lock.state in LADDER:
                assert turn[8] > np.cos(np.radians(45.0)) and motors.any()
    states = [state for state, _ in seen]
    assert states[-len(rungs) :] == [*rungs] and lock.reason == trouble
    height, climb, upright = seen[-1][1]
    if len(rungs) > 1:
        assert height < 0.1 and climb > -1.0 and upright > np.cos(np.radians(30.0))
    else:
        assert height > 0.5  # motors off at once


def test_late_commands_are_bridged_by_the_pilot_and_taken_up_again():
    """Hiccups of 0.25 s, under which a quadrotor that is told the same all the time would tumble."""
    place, policy = World(make("quad_hover", robot="crazyflie"), "flight", 500.0, 0), PolicyFile.load("quad_any")
    lock, leaned = Interlock(place.safe(), 0.3, 0.25, place.pilot), 1.0
    lock.arm(0.0, True)
    lock.motors(0.0)
    policy.reset(1)
    for k in range(500 * 6):
        now = k / 500
        lock.arm(now, True)
        if k % 5 == 0 and not (now > 1.0 and now % 1.0 < 0.25):
            told = policy.step({s.name: place.read()[s.name][None] for s in policy.inputs})["motor_command"][0]
            lock.command(now, told)
        place.step(lock.motors(now), True)
        leaned = min(leaned, float(place.engine.read("rotation")[0, 8])) if now > 1.0 else 1.0
        assert now < 1.0 or place.engine.read("position")[0, 2] > 0.5
    assert lock.state == FLYING and leaned > np.cos(np.radians(50.0))


def test_on_the_ground_any_trouble_ends_in_motors_off():
    place = World(make("quad_hover", robot="crazyflie"), "flight", 500.0, 0)
    lock = Interlock(place.safe(), 0.1, 0.25, place.pilot)
    lock.arm(0.0, True)
    lock.motors(0.0)
    lock.command(0.0, np.full(4, 0.05))  # too little to climb
    for k in range(60):
        place.step(lock.motors(k / 500), True)
    assert lock.summary == "stopped: commands lost"


def test_a_topic_belongs_to_who_spoke_first_until_that_one_is_silent():
    owner = Owner(0.1)
    assert owner.accepts(b"policy", 1.0) and not owner.accepts(b"stranger", 1.05) and owner.accepts(b"policy", 1.09)
    assert owner.rivals(1.1) == [b"stranger"] and owner.rivals(3.0) == [] and owner.ignored == 1
    assert owner.accepts(b"a restarted policy", 1.2) and owner.gid == b"a restarted policy"
    owner.held = True  # in flight nobody follows
    assert not owner.accepts(b"policy", 9.0)
    for k in range(100):
        assert not owner.accepts(str(k).encode(), 9.0 + 0.01 * k)
    assert len(owner.strangers) == NAMES and owner.rivals(10.0)


def test_what_keeps_it_from_being_armed_is_said():
    lock = Interlock(SAFE, hold_s=0.1, silence_s=0.25)
    lock.arm(1.0, True)
    lock.contested = "two publishers on /armed: /supervisor and /stranger"
    lock.motors(1.0)
    assert lock.summary == "disarmed: two publishers on /armed: /supervisor and /stranger"
    lock.contested = ""
    lock.command(1.0, TURN)
    assert lock.motors(1.01) is SAFE and lock.summary.startswith("disarmed: somebody commands it already")
    lock.arm(1.02, False)
    lock.motors(1.02)
    assert lock.summary == "disarmed"
    lock.arm(1.2, True)
    lock.motors(1.2)
    assert lock.summary == "armed"


@given(st.lists(st.tuples(st.sampled_from("acoeh"), st.floats(0.0, 0.3)), max_size=40))
def test_the_motors_turn_only_while_armed_is_fresh_and_somebody_commands(events):
    lock, now = Interlock(SAFE, 0.1, 0.25), 0.0
    armed = commanded = -math.inf
    for (kind, pause), value in zip(events, itertools.cycle([True, False, True])):
        now += pause
        if kind == "a":
            lock.arm(now, value)
            armed = now if value else -math.inf
        elif kind in "co":
            lock.command(now, TURN) if kind == "c" else lock.override(now, TURN)
            commanded = now
        elif kind == "e":
            lock.emergency = value
        if lock.motors(now) is TURN:
            assert now - armed <= 0.25 and now - commanded <= 0.1 and not lock.emergency


def test_faults():
    def stamped(second: int) -> Odometry:
        message = Odometry()
        message.header.stamp.sec = second
        return message

    assert Fault("silent:odometry").message("odometry", stamped(1), 1.0) is None
    assert Fault("silent:odometry").message("target", stamped(1), 1.0) is not None
    frozen, delayed = Fault("frozen"), Fault("delayed")
    assert [frozen.message("odometry", stamped(k), float(k)).header.stamp.sec for k in (3, 4, 5)] == [3, 3, 3]
    assert delayed.message("odometry", stamped(1), 1.0) is None
    assert delayed.message("odometry", stamped(2), 1.0 + DELAY).header.stamp.sec == 1
    assert Fault("clock").message("odometry", stamped(1), 1.0).header.stamp.sec == 1 + JUMP
    assert np.isnan(Fault("nan").values("odometry", {"position": np.zeros(3)})["position"]).all()
    assert set(KINDS) >= {"none", "transport", "battery"}
    with pytest.raises(ValueError, match="unknown fault 'fire'; choices: none, silent"):
        Fault("fire")
