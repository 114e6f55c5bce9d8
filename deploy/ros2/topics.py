"""Which topic and standard message carries which signal; the only place where ROS conventions meet ours.

ROS gives quaternions as (x, y, z, w) and an Odometry's twist in its child frame; here they become rotation matrices and
velocities in the world. Frames are REP 103's: x forward, y left, z up.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TransformStamped
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from sensor_msgs.msg import BatteryState, Image, Imu
from std_msgs.msg import Float32MultiArray, Float64MultiArray, MultiArrayDimension

from deploy.ros2.pictures import PictureError, decode
from deploy.trust.text import printable
from sim.rotations import quaternion, rotation_matrix
from sim.spec import Group, Signal

Array = NDArray[Any]
Values = dict[str, Array]  # (*shape) by signal name
WORLD, ODOM, BODY = "world", "odom", "base_link"  # of REP 105: where wheels began, and the robot
NOT_OURS = ("_ned", "_frd")  # REP 103's suffixes of frames whose z axis points down
ITS_OWN = (BODY, "base_footprint", "body")  # frames that move with a robot that moves, maybe behind NAMESPACE/

COMMAND, OVERRIDE, EXECUTED = "command", "override", "executed/command"
HEARTBEAT, ARMED, EMERGENCY, ROBOT, STATE = "heartbeat", "armed", "emergency_stop", "robot", "state"
INSTRUCTION = "instruction"  # what to do, in words
BEAT, CHALLENGE, REQUEST, ANSWER = "armed_beat", "armed_challenge", "arm_request", "arm_answer"  # signed arming


class TopicError(ValueError):
    """A message or a contract that does not fit; the message says which part and what would fit."""


@dataclass(frozen=True)
class Source:
    """One topic: its message type, the signals that it carries, and the way between message and values.

    `read` gives values (*shape) by name; it marks what the message leaves open as NaN. `fill` is its inverse. `paces`:
    the robot's own state, which has to come at the policy's rate; other topics need only be younger than their max_age.
    """

    topic: str
    message: Any
    signals: Group
    read: Callable[[Any], Values]
    fill: Callable[[Any, Mapping[str, Any]], None]
    frame: str = WORLD
    paces: bool = False


def _three(vector: Any) -> NDArray[np.float64]:
    return np.array((vector.x, vector.y, vector.z))


def _set(vector: Any, values: Any) -> None:
    vector.x, vector.y, vector.z = (float(v) for v in values)


def _rotation(q: Any) -> NDArray[np.float64]:
    """(9,), NaN where nobody filled the quaternion in."""
    length = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w
    return np.array(rotation_matrix(q.w, q.x, q.y, q.z)) if abs(length - 1.0) < 0.02 else np.full(9, math.nan)


def _check_up(what: str, *frames: str) -> None:
    """TopicError for frames whose z axis points down."""
    if any(frame.endswith(NOT_OURS) for frame in frames):
        names = " and ".join(f"{printable(frame, 80)!r}" for frame in frames)
        raise TopicError(f"{what} is in {names}; frames here have z up: convert it at its source")


def _read_odometry(message: Odometry) -> Values:
    frame, child = message.header.frame_id, message.child_frame_id
    _check_up("odometry", frame, child)
    rotation = _rotation(message.pose.pose.orientation)
    velocity, rate = _three(message.twist.twist.linear), _three(message.twist.twist.angular)
    turn = rotation.reshape(3, 3)
    if child != frame:
        ours, velocity = velocity, turn @ velocity
    else:  # some publishers give the twist in the world
        ours, rate = turn.T @ velocity, turn.T @ rate
    position = _three(message.pose.pose.position)
    wheels = {"velocity": ours[:2], "turning": rate[2:], "odometry": np.array([*position[:2], turn[0, 0], turn[1, 0]])}
    return {
        "position": position,
        "rotation": rotation,
        "linear_velocity": velocity,
        "angular_velocity": rate,
        **wheels,
    }


def _set_quaternion(message: Any, rotation: Any) -> None:
    message.x, message.y, message.z, message.w = quaternion(rotation)


def _on_the_ground(values: Mapping[str, Any]) -> Values:
    """What an Odometry carries, of a robot on wheels."""
    x, y, cos, sin = np.asarray(values["odometry"], np.float64)
    turn = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    return {
        "position": np.array([x, y, 0.0]),
        "rotation": turn.reshape(9),
        "linear_velocity": turn @ np.array([*values["velocity"], 0.0]),
        "angular_velocity": np.array([0.0, 0.0, *values["turning"]]),
    }


def _fill_odometry(message: Odometry, values: Mapping[str, Any]) -> None:
    if "rotation" not in values:
        values, message.header.frame_id = _on_the_ground(values), ODOM
    turn = np.asarray(values["rotation"], np.float64).reshape(3, 3)
    message.child_frame_id = BODY
    _set(message.pose.pose.position, values["position"])
    _set_quaternion(message.pose.pose.orientation, values["rotation"])
    _set(message.twist.twist.linear, turn.T @ values["linear_velocity"])
    _set(message.twist.twist.angular, values["angular_velocity"])


def transform(message: Odometry) -> TransformStamped:
    """The same pose for TF."""
    made = TransformStamped(header=message.header, child_frame_id=message.child_frame_id)
    place, position = made.transform.translation, message.pose.pose.position
    place.x, place.y, place.z = position.x, position.y, position.z
    made.transform.rotation = message.pose.pose.orientation
    return made


def _read_imu(message: Imu) -> Values:
    _check_up("imu", message.header.frame_id)
    return {"linear_acceleration": _three(message.linear_acceleration)}


def _fill_imu(message: Imu, values: Mapping[str, Any]) -> None:
    _set_quaternion(message.orientation, values["rotation"])
    _set(message.angular_velocity, values["angular_velocity"])
    _set(message.linear_acceleration, values["linear_acceleration"])


def _pose(
    topic: str, position: Signal, rotation: Signal | None = None, *, paces: bool = False, moves: bool = False
) -> Source:
    """A PoseStamped that carries a position, and a rotation where that matters; unknown is a quaternion of zeros.

    It is in the world. `moves`: of a robot that moves: a place in its own frame, a metre ahead, would be a metre from
    the world's origin. An arm's base stands: base_link is as good as the world.
    """

    def read(message: PoseStamped) -> Values:
        frame = message.header.frame_id
        _check_up(topic, frame)
        if moves and frame.rpartition("/")[2] in ITS_OWN:
            raise TopicError(f"{topic} is in {printable(frame, 80)!r}, the robot's own frame; give it in {WORLD!r}")
        turn = {rotation.name: _rotation(message.pose.orientation)} if rotation else {}
        return {position.name: _three(message.pose.position), **turn}

    def fill(message: PoseStamped, values: Mapping[str, Any]) -> None:
        _set(message.pose.position, values[position.name])
        message.pose.orientation.w = 0.0 if rotation else 1.0
        if rotation and rotation.name in values:
            _set_quaternion(message.pose.orientation, values[rotation.name])

    return Source(topic, PoseStamped, (position, rotation) if rotation else (position,), read, fill, paces=paces)


def _read_battery(message: BatteryState) -> Values:
    return {"battery_voltage": np.array([message.voltage])}


def _fill_battery(message: BatteryState, values: Mapping[str, Any]) -> None:
    message.voltage = float(values["battery_voltage"][0])
    message.percentage = float(values.get("battery_level", math.nan))
    message.present = True


def _world(name: str, **more: Any) -> Signal:
    rotation = name.endswith("_rotation")
    return Signal(name, (9,) if rotation else (3,), "1" if rotation else "m", "world", **more)


# One more embodiment is one more entry here, as a LaserScan; an arm's joints, whose names differ, are in `joints.py`.
ODOMETRY = Source(
    "odometry",
    Odometry,
    (
        Signal("position", (3,), "m", "world"),
        Signal("rotation", (9,), "1", "body->world"),
        Signal("linear_velocity", (3,), "m/s", "world"),
        Signal("angular_velocity", (3,), "rad/s", "body"),
        # The same of a robot on wheels: ahead and to the left, to the left, and where its wheels say that it is.
        Signal("velocity", (2,), "m/s", "body"),
        Signal("turning", (1,), "rad/s", "body"),
        Signal("odometry", (4,), "1", "start"),
    ),
    _read_odometry,
    _fill_odometry,
    paces=True,
)
IMU = Source(
    "imu", Imu, (Signal("linear_acceleration", (3,), "m/s^2", "body"),), _read_imu, _fill_imu, frame=BODY, paces=True
)
TARGET = _pose("target", _world("target_position", max_age=1.0), moves=True)
GOAL = _pose("goal", _world("goal_position", max_age=1.0))
HAND = _pose("hand_pose", _world("hand_position"), _world("hand_rotation"), paces=True)
OBJECT = _pose("object_pose", _world("object_position"), _world("object_rotation"))
BATTERY = Source(
    "battery", BatteryState, (Signal("battery_voltage", (1,), "V", max_age=2.0),), _read_battery, _fill_battery
)
STANDARD = {
    signal.name: source for source in (ODOMETRY, IMU, TARGET, BATTERY, GOAL, HAND, OBJECT) for signal in source.signals
}


def array_source(signal: Signal, topic: str = "", message: Any = Float32MultiArray) -> Source:
    """The topic signals/NAME, or another, of a signal that no standard message carries."""

    def read(message: Any) -> Values:
        return {signal.name: from_array(message, signal)}

    def fill(message: Any, values: Mapping[str, Any]) -> None:
        fill_array(message, signal, values[signal.name])

    return Source(topic or f"signals/{signal.name}", message, (signal,), read, fill, frame="")


def image_source(signal: Signal, resize: bool = False) -> Source:
    """The topic NAME/image_raw of a picture (height, width, 3), 0 to 255; `resize`: average larger ones down."""
    height, width, _ = signal.shape

    def read(message: Image) -> Values:
        try:
            return {signal.name: decode(message, height, width, resize)}
        except PictureError as error:
            raise TopicError(str(error)) from None

    def fill(message: Image, values: Mapping[str, Any]) -> None:
        message.height, message.width, message.step, message.encoding = height, width, 3 * width, "rgb8"
        message.data = array("B", np.asarray(values[signal.name]).astype(np.uint8).tobytes())

    return Source(f"{signal.name}/image_raw", Image, (signal,), read, fill, frame=signal.name)


def sources(inputs: Group, special: tuple[Source, ...] = (), resize: bool = False) -> tuple[Source, ...]:
    """The topics that deliver a policy's signals; `special` ones go first. `resize`: larger pictures are averaged down.

    TopicError where a signal is not what its topic carries.
    """
    table = STANDARD | {signal.name: source for source in special for signal in source.signals}
    found: dict[str, Source] = {}
    for signal in inputs:
        source = table.get(signal.name)
        source = source or (image_source(signal, resize) if signal.is_picture else array_source(signal))
        carried = next(s for s in source.signals if s.name == signal.name)
        for part in ("shape", "unit", "frame"):
            ours, theirs = getattr(signal, part), getattr(carried, part)
            if ours != theirs:
                kind = type_name(source.message)
                raise TopicError(f"signal {signal.name!r}: {part} is {ours!r} in the policy, {theirs!r} in {kind}")
        found[source.topic] = source
    return tuple(found.values())


def command_topic(outputs: Group, command: Signal) -> str:
    """`command` for a robot's only command, command/NAME where there are several."""
    return COMMAND if len(outputs) == 1 else f"{COMMAND}/{command.name}"


def override(topic: str) -> str:
    """Where a human commands what `topic` commands."""
    return f"{OVERRIDE}/{topic}"


def from_array(message: Any, signal: Signal) -> NDArray[np.float64]:
    """The values (*shape) of a multi-array whose label names the signal; TopicError when it is another or no such."""
    label = message.layout.dim[0].label if message.layout.dim else ""
    if label != signal.name or len(message.data) != signal.size:
        raise TopicError(
            f"got {len(message.data)} numbers labelled {printable(label, 80)!r}, "
            f"not {signal.size} labelled {signal.name!r}"
        )
    return np.array(message.data, np.float64).reshape(signal.shape)


def fill_array(message: Any, signal: Signal, values: Any) -> None:
    """The inverse of `from_array`."""
    flat = np.asarray(values).reshape(signal.size)
    message.layout.dim = [MultiArrayDimension(label=signal.name, size=signal.size, stride=signal.size)]
    message.data = flat.tolist()


def command_message(signal: Signal, values: Any) -> Float64MultiArray:
    """As ros2_control's forward_command_controller takes it; the label says which command it is."""
    message = Float64MultiArray()
    fill_array(message, signal, values)
    return message


def type_name(message: Any) -> str:
    """As `ros2 topic info` prints it: nav_msgs/msg/Odometry."""
    return "/".join((message.__module__.partition(".")[0], "msg", message.__name__))
