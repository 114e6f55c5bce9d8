"""Gymnasium-Robotics' numbers by name, in SI units: what its environments show, in their order, and what moves them.

Sources: the environments' docstrings and code (1.4.2); where those disagree, the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sim.experts import gymnasium as experts
from sim.spec import Group, Signal


@dataclass(frozen=True)
class Kind:
    """Environments with the same signals and commands."""

    robot: str
    seen: Group  # their observation, in their order
    commands: Group
    goal: Signal | None = None
    achieved: str = ""  # the signal that should become equal to the goal
    per_step: tuple[str, ...] = ()  # velocities that they give per control step
    padding: int = 0  # actions of theirs that do nothing
    expert: Callable[[Any], experts.Expert] | None = None  # made for an environment
    corruption: dict[str, float] = field(default_factory=dict)


def _position(name: str, size: int = 3) -> Signal:
    return Signal(name, (size,), "m", "world")


def _velocity(name: str, size: int = 3) -> Signal:
    return Signal(name, (size,), "m/s", "world")


def _angles(name: str, size: int) -> Signal:
    return Signal(name, (size,), "rad")


def _rates(name: str, size: int) -> Signal:
    return Signal(name, (size,), "rad/s")


def _numbers(name: str, size: int) -> Signal:
    return Signal(name, (size,), "1")


def _command(name: str, size: int, unit: str, limit: float, frame: str = "") -> Signal:
    return Signal(name, (size,), unit, frame, -limit, limit)


PUSH_CORRUPTION = {"object_position": 0.022, "goal_position": 0.055, "hand_velocity": 0.35}
PICK_CORRUPTION = {"object_position": 0.015, "goal_position": 0.045, "hand_velocity": 0.3, "gripper_effort": 0.3}
DOOR_CORRUPTION = {"handle_position": 0.011, "joint_target": 0.1}
MAZE_CORRUPTION = {"goal_position": 1.3, "force": 100.0}

# Their action 1 moves the hand's set point by 5 cm per control step of 40 ms; of the gripper, 1 opens.
_HAND = _command("hand_velocity", 3, "m/s", 1.25, "world")
_GRIPPER = _command("gripper_effort", 1, "1", 1.0)
_GRIP = (_position("grip_position"), Signal("gripper_opening", (2,), "m"))  # of each finger
_GRIP_SPEED = (_velocity("grip_velocity"), Signal("gripper_velocity", (2,), "m/s"))
_FETCH_OBJECT = (
    _GRIP[0],
    _position("object_position"),
    _position("object_relative_position"),  # to the grip
    _GRIP[1],
    Signal("object_rotation", (3,), "rad", "world"),  # Euler angles
    _velocity("object_relative_velocity"),
    Signal("object_angular_velocity", (3,), "rad/s", "world"),
    *_GRIP_SPEED,
)
_FETCH_STEP = ("object_relative_velocity", "object_angular_velocity", "grip_velocity", "gripper_velocity")


def _fetch(name: str) -> Kind:
    goal = _position("goal_position")
    slide = Kind("fetch", _FETCH_OBJECT, (_HAND,), goal, "object_position", _FETCH_STEP, padding=1)
    if name.startswith("FetchReach"):
        return replace(slide, seen=(*_GRIP, *_GRIP_SPEED), achieved="grip_position", expert=experts.Reach)
    if name.startswith("FetchPush"):
        return replace(slide, expert=experts.Push, corruption=PUSH_CORRUPTION)
    if name.startswith("FetchPickAndPlace"):
        pick = replace(slide, commands=(_HAND, _GRIPPER), padding=0)
        return replace(pick, expert=experts.PickAndPlace, corruption=PICK_CORRUPTION)
    return slide


_ADROIT: dict[str, tuple[Group, int]] = {  # what is seen, number of actuators
    "AdroitHandDoor": (
        (
            _angles("joint_position", 27),
            _angles("latch_position", 1),
            _angles("door_position", 1),
            _position("palm_position"),
            _position("handle_position"),
            _position("handle_to_palm"),
            _numbers("door_open", 1),  # 1 or -1
        ),
        28,
    ),
    "AdroitHandHammer": (
        (
            _angles("joint_position", 26),
            Signal("nail_insertion", (1,), "m"),
            _velocity("hammer_velocity"),  # this and the next cut to +-1
            Signal("hammer_angular_velocity", (3,), "rad/s", "world"),
            _position("palm_position"),
            _position("hammer_position"),
            Signal("hammer_rotation", (3,), "rad", "world"),  # Euler angles
            _position("nail_position"),
            _numbers("nail_impact", 1),  # cut to +-1
        ),
        26,
    ),
    "AdroitHandPen": (
        (
            _angles("joint_position", 24),
            _position("pen_position"),
            _velocity("pen_velocity"),
            Signal("pen_angular_velocity", (3,), "rad/s", "world"),
            Signal("pen_direction", (3,), "1", "world"),
            Signal("goal_direction", (3,), "1", "world"),
            _position("goal_to_pen"),
            Signal("direction_error", (3,), "1", "world"),
        ),
        24,
    ),
    "AdroitHandRelocate": (
        (
            Signal("arm_position", (3,), "m"),
            _angles("joint_position", 27),
            _position("ball_to_palm"),
            _position("goal_to_palm"),
            _position("goal_to_ball"),
        ),
        30,
    ),
}


def _adroit(name: str) -> Kind:
    seen, actuators = next(entry for start, entry in _ADROIT.items() if name.startswith(start))
    command = _command("joint_target", actuators, "1", 1.0)
    if not name.startswith("AdroitHandDoor"):
        return Kind("adroit", seen, (command,))
    return Kind("adroit", seen, (command,), expert=experts.Door, corruption=DOOR_CORRUPTION)


def _hand(name: str) -> Kind:
    """The Shadow hand; 92 touch sensors where the name says so."""
    joints: Group = (_angles("joint_position", 24), _rates("joint_velocity", 24))
    commands = (_command("joint_target", 20, "1", 1.0),)
    if name.startswith("HandReach"):
        goal = _position("goal_position", 15)
        return Kind("shadow_hand", (*joints, _position("fingertip_position", 15)), commands, goal, "fingertip_position")
    speeds = (_velocity("object_velocity"), Signal("object_angular_velocity", (3,), "rad/s", "body"))
    touch = (_numbers("touch", 92),) if "Touch" in name else ()
    pose = _numbers("object_pose", 7)  # position (m), quaternion w, x, y, z
    goal = _numbers("goal_pose", 7)
    return Kind("shadow_hand", (*joints, *speeds, pose, *touch), commands, goal, "object_pose")


def _kitchen(name: str) -> Kind:
    seen: Group = (
        _angles("joint_position", 7),
        Signal("gripper_opening", (2,), "m"),
        _rates("joint_velocity", 7),
        Signal("gripper_velocity", (2,), "m/s"),
        _numbers("furniture_position", 14),  # knobs and burners, light, cabinets, microwave: rad, m
        _position("kettle_position"),
        Signal("kettle_quaternion", (4,), "1", "world"),
        _numbers("furniture_velocity", 14),
        _velocity("kettle_velocity"),
        Signal("kettle_angular_velocity", (3,), "rad/s", "body"),
    )
    # Their action 1 is 2 rad/s, although their manual says 1.
    arm, gripper = _command("joint_velocity_target", 7, "rad/s", 2.0), _command("gripper_speed", 2, "m/s", 2.0)
    return Kind("franka", seen, (arm, gripper))


def _maze(name: str) -> Kind:
    position, velocity = _position("position", 2), _velocity("velocity", 2)
    force = _command("force", 2, "N", 100.0, "world")  # their manual says 1 N; their motors have a gear of 100
    return Kind(
        "point",
        (position, velocity),
        (force,),
        _position("goal_position", 2),
        "position",
        expert=experts.Maze,
        corruption=MAZE_CORRUPTION,
    )


KINDS: dict[str, Callable[[str], Kind]] = {
    "Fetch": _fetch,
    "AdroitHand": _adroit,
    "Hand": _hand,
    "FrankaKitchen": _kitchen,
    "PointMaze": _maze,
}
