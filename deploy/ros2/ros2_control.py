"""An arm, or a robot on wheels, as ros2_control has it: its joints' states, and the commands that controllers take.

`forward`: plain numbers in the order of the controller's joints, for a forward_command_controller. `trajectory`: one
point, to be reached in a control period, for a JointTrajectoryController. A velocity of the hand is a TwistStamped
either way, for MoveIt Servo; that of a robot on wheels is a Twist on cmd_vel, or a TwistStamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.duration import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from deploy.ros2.topics import BODY, Array, Source, TopicError, Values, array_source, command_topic
from deploy.trust.text import printable
from sim.spec import Group, Signal

FORWARD, TRAJECTORY = WAYS = ("forward", "trajectory")
STATES = {
    "joint_position": ("position", "rad"),
    "joint_velocity": ("velocity", "rad/s"),
    "joint_effort": ("effort", "N m"),
}
OPENING = "gripper_opening"
PAN, LOOK = "pan", "look"  # where a camera on a joint looks, and is to look
CONTROLLERS = {"joint_target": "arm_controller", "gripper_target": "gripper_controller", LOOK: "pan_controller"}
SERVO = {"hand_velocity": "servo_node/delta_twist_cmds"}
DRIVE, TURN = BASE = ("drive", "turn")  # ahead and maybe to the left, in m/s; to the left, in rad/s
CMD_VEL = "cmd_vel"
TWIST, TWIST_STAMPED = TWISTS = ("twist", "twist_stamped")


@dataclass(frozen=True)
class Joints:
    """The names of an arm's joints and of its fingers, which share the gripper's opening, as in the robot's URDF.

    Where none are given they are called as Franka calls them: ROBOT_joint1, ... and ROBOT_finger_joint1 and 2. A robot
    without an arm may name the joint that turns its camera; else that is pan_joint.
    """

    robot: str
    arm: tuple[str, ...] = ()
    fingers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, robot: str, arm: str, fingers: str) -> Joints:
        """From names that commas separate; nothing where none are given."""
        return cls(robot, *(tuple(n.strip() for n in text.split(",") if n.strip()) for text in (arm, fingers)))

    def of_arm(self, count: int) -> tuple[str, ...]:
        """`count` names; TopicError when others were given."""
        names = self.arm or tuple(f"{self.robot}_joint{k + 1}" for k in range(count))
        if len(names) != count:
            raise TopicError(f"the policy's arm has {count} joints, named are {len(names)}: {', '.join(names)}")
        return names

    def of_camera(self, beside_an_arm: bool = False) -> tuple[str, ...]:
        """The one that turns it; TopicError when several were given."""
        names = ("pan_joint",) if beside_an_arm or not self.arm else self.arm
        if len(names) != 1:
            raise TopicError(f"the policy's camera has one joint, named are {len(names)}: {', '.join(names)}")
        return names

    def of_gripper(self) -> tuple[str, ...]:
        """The fingers."""
        return self.fingers or tuple(f"{self.robot}_finger_joint{k}" for k in (1, 2))


def joint_sources(inputs: Group, joints: Joints) -> tuple[Source, ...]:
    """The topic joint_states, matched by name, with those of its signals that are wanted; nothing when none is."""
    sizes = [s.size for s in inputs if s.name in STATES]
    arm = joints.of_arm(sizes[0]) if sizes else ()
    fingers = joints.of_gripper() if any((s.name, s.shape, s.unit) == (OPENING, (1,), "m") for s in inputs) else ()
    wanted = {s.name for s in inputs}
    carried = [Signal(name, (len(arm),), unit) for name, (_, unit) in STATES.items() if name in wanted]
    carried += [Signal(OPENING, (1,), "m")] * bool(fingers)
    turns = any((s.name, s.shape, s.unit) == (PAN, (1,), "rad") for s in inputs)
    camera = joints.of_camera(bool(arm)) if turns else ()
    carried += [Signal(PAN, (1,), "rad", "body")] * turns

    def read(message: JointState) -> Values:
        values = {s.name: _named(message, STATES[s.name][0], arm) for s in carried if s.name in STATES}
        if fingers:
            values[OPENING] = _named(message, "position", fingers).sum(keepdims=True)
        if camera:
            values[PAN] = _named(message, "position", camera)
        return values

    def fill(message: JointState, values: Mapping[str, Any]) -> None:
        """As joint_state_broadcaster does, with NaN for what is not measured."""
        message.name = [*arm, *fingers, *camera]
        for name, (field, _) in STATES.items():
            column = np.full(len(message.name), math.nan)
            column[: len(arm)] = values.get(name, math.nan)
            if fingers and field == "position":
                column[len(arm) : len(arm) + len(fingers)] = float(values[OPENING][0]) / len(fingers)
            if camera and field == "position":
                column[-1] = float(values[PAN][0])
            setattr(message, field, column.tolist())

    source = Source("joint_states", JointState, tuple(carried), read, fill, frame="", paces=True)
    return (source,) if carried else ()


def _named(message: JointState, field: str, names: Sequence[str]) -> Array:
    """One field for the joints of these names, in their order; NaN where the message leaves it out."""
    values, place = getattr(message, field), {name: k for k, name in enumerate(message.name)}
    missing = [name for name in names if name not in place]
    if missing:
        raise TopicError(f"it has no joint {missing[0]!r}; there are: {_listed(place)}")
    if len(place) != len(message.name):
        raise TopicError(f"it names a joint twice: {_listed(message.name)}")
    if len(values) not in (0, len(place)):
        raise TopicError(f"it has {len(values)} numbers of {field} for {len(place)} joints")
    return np.array([values[place[name]] if len(values) else math.nan for name in names])


def _listed(names: Iterable[str]) -> str:
    """Names that somebody else chose."""
    return printable(", ".join(names), 400) or "none"


def command_sources(outputs: Group, joints: Joints, way: str, period: float, twist: str = TWIST) -> tuple[Source, ...]:
    """The topics of the commands, in their order; `period` (s) until the next ones.

    TopicError for an unknown `way` or `twist`.
    """
    for what, given, choices in (("commands", way, WAYS), ("twist", twist, TWISTS)):
        if given not in choices:
            raise TopicError(f"{what} {given!r} is not one of {', '.join(choices)}")
    named = {s.name: s for s in outputs}
    base = (_cmd_vel(named[DRIVE], named[TURN], twist),) if named.keys() >= {*BASE} else ()
    rest = [s for s in outputs if not (base and s.name in BASE)]
    return (*base, *(_command(outputs, signal, joints, way, period) for signal in rest))


def _command(outputs: Group, signal: Signal, joints: Joints, way: str, period: float) -> Source:
    if signal.name in SERVO:
        return _twist(signal)
    if signal.name not in CONTROLLERS:
        return array_source(signal, command_topic(outputs, signal), Float64MultiArray)
    gripper = signal.unit == "m"
    names = joints.of_gripper() if gripper else joints.of_arm(signal.size) if signal.name != LOOK else ()
    names = names or joints.of_camera(any(s.name == "joint_target" for s in outputs))
    share = len(names) if gripper else 1  # fingers share the opening

    def fill(message: Any, values: Mapping[str, Any]) -> None:
        write(message, np.repeat(np.asarray(values[signal.name], np.float64).ravel() / share, share).tolist())

    def read(message: Any) -> Values:
        given = np.array(take(message))
        return {signal.name: given.sum(keepdims=True) if gripper else given}

    write, take = _forward(names) if way == FORWARD else _trajectory(names, period)
    topic, message = ("commands", Float64MultiArray) if way == FORWARD else ("joint_trajectory", JointTrajectory)
    return Source(f"{CONTROLLERS[signal.name]}/{topic}", message, (signal,), read, fill, frame="")


Way = tuple[Callable[[Any, list[float]], None], Callable[[Any], list[float]]]  # into a message, and out of it


def _forward(names: tuple[str, ...]) -> Way:
    def write(message: Float64MultiArray, values: list[float]) -> None:
        message.data = values

    def take(message: Float64MultiArray) -> list[float]:
        if len(message.data) != len(names):
            raise TopicError(f"got {len(message.data)} numbers, not {len(names)} for {', '.join(names)}")
        return list(message.data)

    return write, take


def _trajectory(names: tuple[str, ...], period: float) -> Way:
    def write(message: JointTrajectory, values: list[float]) -> None:
        message.joint_names = list(names)
        reached = Duration(seconds=period).to_msg()
        message.points = [JointTrajectoryPoint(positions=values, time_from_start=reached)]

    def take(message: JointTrajectory) -> list[float]:
        if sorted(message.joint_names) != sorted(names):
            raise TopicError(f"got the joints {_listed(message.joint_names)}, not {', '.join(names)}")
        if len(message.points) != 1 or len(message.points[0].positions) != len(names):
            raise TopicError("a trajectory here has one point, with a position for every joint")
        given = dict(zip(message.joint_names, message.points[0].positions, strict=True))
        return [given[name] for name in names]

    return write, take


def _twist(signal: Signal) -> Source:
    def fill(message: TwistStamped, values: Mapping[str, Any]) -> None:
        linear = message.twist.linear
        linear.x, linear.y, linear.z = (float(v) for v in values[signal.name])

    def read(message: TwistStamped) -> Values:
        linear = message.twist.linear
        return {signal.name: np.array([linear.x, linear.y, linear.z])}

    return Source(SERVO[signal.name], TwistStamped, (signal,), read, fill)


def _cmd_vel(drive: Signal, turn: Signal, twist: str) -> Source:
    """What a robot on wheels is driven by; `drive` has one number, or two where it also goes sideways."""

    def fill(message: Any, values: Mapping[str, Any]) -> None:
        told = message.twist if twist == TWIST_STAMPED else message
        ahead = np.asarray(values[drive.name], np.float64).ravel()
        told.linear.x, told.angular.z = float(ahead[0]), float(np.ravel(values[turn.name])[0])
        told.linear.y = float(ahead[1]) if drive.size > 1 else 0.0

    def read(message: Any) -> Values:
        told = message.twist if twist == TWIST_STAMPED else message
        ahead = np.array([told.linear.x, told.linear.y][: drive.size])
        return {drive.name: ahead, turn.name: np.array([told.angular.z])}

    kind, frame = (TwistStamped, BODY) if twist == TWIST_STAMPED else (Twist, "")
    return Source(CMD_VEL, kind, (drive, turn), read, fill, frame=frame)
